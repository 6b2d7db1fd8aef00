"""patch, unpatch, scheme_of and check: the public calls that change or read a model's scheme."""

from typing import Any, TypeVar

from torch import nn

from hf_posswap.errors import CheckpointError, SchemeError
from hf_posswap.families import Family, family_of
from hf_posswap.families.configs import NeedsPosswap
from hf_posswap.patching.checks import (
    checked,
    contradiction,
    make,
    refuse_wrapped,
    saved_scheme,
    scheme_in_block,
)
from hf_posswap.patching.forward import STATE, PatchState
from hf_posswap.patching.install import encodings_of, install, uninstall
from hf_posswap.schemes import Geometry, Scheme

Model = TypeVar("Model", bound=nn.Module)


def patch(model: Model, scheme: Scheme | str, *, allow_unordered: bool = False, **fields: Any) -> Model:
    """Gives the model another positional scheme, in place, and returns it.

    `scheme` is a scheme or a name with `fields`: `patch(model, "yarn", factor=4.0)`. A patched model is first taken
    back to its original; a model that has the scheme already is left alone. `allow_unordered=True` admits a scheme
    under which an encoder cannot tell word order.

    Raises:
        FamilyError: the model is not supported, or is wrapped (PEFT, torch.compile, DDP, FSDP): patch it before.
        SchemeError: unknown scheme or field, or a scheme that this model cannot carry. The model is unchanged.
    """
    refuse_wrapped(model)
    family = family_of(model.config)
    resolved, geometry = checked(model.config, make(scheme, **fields), allow_unordered)
    if current_scheme(model) == resolved:
        return model
    replace_scheme(model, family, resolved, geometry)
    return model


def unpatch(model: Model) -> Model:
    """Takes the patch off: outputs, `state_dict` keys, config and module types are the original ones again.

    Weights that were trained meanwhile stay trained; only positions come back. An unpatched model is left alone.

    Raises:
        CheckpointError: the model was loaded with its scheme, so there is no original.
    """
    refuse_wrapped(model)
    state = patch_state(model)
    if state is None:
        return model
    if state.reloaded:
        raise CheckpointError(
            f"This model was loaded with {state.scheme.name}, so there is no original to go back to: load the original "
            "checkpoint, or patch() to another scheme."
        )
    uninstall(model)
    return model


def scheme_of(model_or_config: Any) -> Scheme:
    """The scheme of a model or config, patched or not, with its fields resolved.

    Raises:
        FamilyError: the architecture is not supported.
        SchemeError: transformers knows the scheme and this package does not.
        CheckpointError: the config's `hf_posswap` block is broken.
    """
    if isinstance(model_or_config, nn.Module):
        refuse_wrapped(model_or_config)
        state = patch_state(model_or_config)
        if state is not None:
            return state.scheme
        family, config = family_of(model_or_config.config), model_or_config.config
        if isinstance(config, NeedsPosswap):
            raise CheckpointError(
                f"This {type(model_or_config).__name__} was built without the scheme that its config names: build it "
                "with an Auto class or hf_posswap.load."
            )
        saved = scheme_in_block(config)
        if saved is not None and contradiction(model_or_config, saved) is None:
            return saved
        return family.stock_scheme(config)
    family = family_of(model_or_config)
    saved = saved_scheme(model_or_config)
    return saved if saved is not None else family.stock_scheme(model_or_config)


def check(model_or_config: Any, scheme: Scheme | str, *, allow_unordered: bool = False, **fields: Any) -> None:
    """Raises what `patch` would raise for this model or config; otherwise returns None and changes nothing."""
    config = model_or_config
    if isinstance(model_or_config, nn.Module):
        refuse_wrapped(model_or_config)
        config = model_or_config.config
    checked(config, make(scheme, **fields), allow_unordered)


def replace_scheme(model: Any, family: Family, scheme: Scheme, geometry: Geometry, **options: Any) -> None:
    """Takes off what is there and installs `scheme`; if that fails, the former patch is put back as it was."""
    state = patch_state(model)
    if state is None:
        install(model, family, scheme, geometry, **options)
        return
    former = encodings_of(_base(model), state)
    config = model.config
    uninstall(model)
    if not state.reloaded and not options and current_scheme(model) == scheme:
        return
    try:
        install(model, family, scheme, geometry, reloaded=state.reloaded, **options)
    except BaseException:
        install(model, family, state.scheme, state.geometry, encodings=former, reloaded=state.reloaded, put_back=config)
        raise


def patch_state(model: nn.Module) -> PatchState | None:
    """The state of a patched model; None for an unpatched one."""
    return getattr(_base(model), STATE, None)


def current_scheme(model: Any) -> Scheme | None:
    """`scheme_of` without refusal: None where a stock scheme is not known here."""
    try:
        return scheme_of(model)
    except SchemeError:
        return None


def _base(model: Any) -> nn.Module:
    return getattr(model, "base_model", model)
