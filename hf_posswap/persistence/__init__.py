"""load and save: models with their scheme, in safetensors only."""

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from hf_posswap.errors import CheckpointError, SchemeError
from hf_posswap.families import family_of
from hf_posswap.families.base import accepted_length
from hf_posswap.families.configs import NeedsPosswap, register_configs
from hf_posswap.patching import patch, patch_state
from hf_posswap.patching.checks import checked_scheme, contradiction, make, refuse_contradiction, saved_scheme
from hf_posswap.patching.install import install
from hf_posswap.persistence import auto
from hf_posswap.persistence.rope_keys import read_rope_keys
from hf_posswap.schemes import Scheme
from hf_posswap.schemes.learned import LearnedEncoding

register_configs()
auto.register_models()


def load(
    path_or_name: str | os.PathLike[str],
    auto_class: Any = AutoModelForCausalLM,
    scheme: Scheme | str | None = None,
    *,
    allow_unordered: bool = False,
    **kwargs: Any,
) -> Any:
    """Loads a model with the scheme it was saved with; with `scheme`, patches it in the same step.

    A scheme with fields is given as an instance: `scheme=YaRN(factor=4.0)`. `allow_unordered` is that of `patch`;
    `kwargs` go to `auto_class.from_pretrained`. Only safetensors are read, never pickles.

    Raises:
        CheckpointError: the block in the config is broken or from the future, or contradicts config or weights; or the
            config has keys of transformers 4 and 5 for rotary positions, and they disagree.
        FamilyError, SchemeError: as `patch`.
    """
    wanted = None if scheme is None else _wanted(scheme)
    model, _ = load_with_info(path_or_name, auto_class, **kwargs)
    return model if wanted is None else patch(model, wanted, allow_unordered=allow_unordered)


def load_with_info(path_or_name: str | os.PathLike[str], auto_class: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """The model that `load` gives, and transformers' account of which weights were missing."""
    if kwargs.get("use_safetensors") is False:
        raise CheckpointError("Only safetensors are read: a pickle can run code when it is loaded.")
    config = kwargs.pop("config", None)
    shared = {k: kwargs[k] for k in ("revision", "token", "cache_dir", "local_files_only", "subfolder") if k in kwargs}
    if config is None:
        read_rope_keys(path_or_name, **shared)
        config = AutoConfig.from_pretrained(path_or_name, **shared)
    saved = saved_scheme(config)
    with_info = {**kwargs, "use_safetensors": True, "output_loading_info": True}
    model, info = auto_class.from_pretrained(path_or_name, config=config, **with_info)
    if isinstance(config, NeedsPosswap) and patch_state(model) is None:
        raise CheckpointError(f"{auto_class.__name__} does not build {saved}: load with an Auto class.")
    if saved is not None and patch_state(model) is None:
        _take_over_native(model, saved)
    auto.refuse_missing(model, info)
    return model, info


def _wanted(scheme: Scheme | str) -> Scheme:
    try:
        return make(scheme)
    except SchemeError as error:
        raise SchemeError(f"{error} load() takes fields in an instance: scheme=YaRN(factor=4.0).") from error


def _take_over_native(model: Any, saved: Scheme) -> None:
    """A plain checkpoint of ours was loaded as a stock model: puts our module in, after checking that they agree."""
    refuse_contradiction(saved, contradiction(model, saved))
    family = family_of(model.config)
    scheme, geometry = checked_scheme(model.config, saved)
    encodings = scheme.encodings(geometry)
    if isinstance(encodings.input, LearnedEncoding) and family.input_slot is not None:
        encodings.input.take(model.base_model.get_submodule(family.input_slot).weight)
    length = accepted_length(model.config)
    install(model, family, scheme, geometry, max_length=length, encodings=encodings, reloaded=True)


def save(model: Any, path: str | os.PathLike[str], *, tokenizer: Any = None, **kwargs: Any) -> None:
    """`model.save_pretrained(path)`, all or nothing: an interrupted or failing save leaves `path` as it was.

    A directory that cannot be moved (the working directory, a mount point) is written file by file instead, the config
    last.

    `kwargs` go to `save_pretrained` (`max_shard_size` ...); a tokenizer is saved along. Other files that are at `path`
    stay; weights from an earlier save there do not.

    Raises:
        CheckpointError: `path` is a file, or the model was patched through its base model.
    """
    target = Path(os.path.realpath(path))
    base = getattr(model, "base_model", model)
    if patch_state(model) is not None and base.config is not getattr(model, "config", None) and not _is_wrapped(model):
        raise CheckpointError("The base model was patched, not this model around it: patch the one that is saved.")
    if target.is_file():
        raise CheckpointError(f"{target} is a file; a model is saved into a directory.")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    # mkdtemp makes it private; a model is as readable as any other directory made here.
    scratch.chmod(target.stat().st_mode if target.exists() else 0o777 & ~_umask())
    try:
        model.save_pretrained(scratch, **kwargs)
        if tokenizer is not None:
            tokenizer.save_pretrained(scratch)
        _publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _publish(scratch: Path, target: Path) -> None:
    """Swaps a finished directory in. What was at `target` and is not written anew moves along."""
    if not target.exists():
        os.replace(scratch, target)
        return
    if _holds_working_directory(target):
        _publish_files(scratch, target)
        return
    # A name of its own beside the target: if neither directory can be moved to where it belongs, both are still there.
    retired = scratch.with_name(scratch.name + "-old")
    try:
        os.replace(target, retired)
    except OSError as error:
        if error.errno not in CANNOT_BE_MOVED:
            raise
        _publish_files(scratch, target)
        return
    _swap(scratch, target, retired)
    shutil.rmtree(retired, ignore_errors=True)


def _swap(scratch: Path, target: Path, retired: Path) -> None:
    """`scratch` becomes `target`, with the other files of `retired`: moved, so that links stay links."""
    fresh, moved = {p.name for p in scratch.iterdir()}, []
    try:
        for old in retired.iterdir():
            if old.name not in fresh and not _is_replaced(old.name, fresh):
                os.replace(old, scratch / old.name)
                moved.append(old.name)
        os.replace(scratch, target)
    except BaseException:
        for name in moved:
            os.replace(scratch / name, retired / name)
        os.replace(retired, target)
        raise


def _holds_working_directory(target: Path) -> bool:
    """Moving it works on Linux, and leaves this process and its shell in a directory that is gone."""
    here = Path.cwd()
    return target == here or target in here.parents


CANNOT_BE_MOVED = (errno.EBUSY, errno.EXDEV, errno.EINVAL)
"""What moving a directory fails with when it is the working directory or a mount point."""


def _publish_files(scratch: Path, target: Path) -> None:
    """File by file, the config last: until then the former one stands beside the former or the new weights."""
    fresh = sorted(scratch.iterdir(), key=lambda p: p.name == "config.json")
    for new in fresh:
        if not new.is_dir():
            shutil.move(new, target / new.name)
    names = {p.name for p in fresh}
    for old in target.iterdir():
        if old.name not in names and _is_replaced(old.name, names):
            old.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _is_wrapped(model: Any) -> bool:
    return not isinstance(model, PreTrainedModel)


def _is_replaced(name: str, fresh: set[str]) -> bool:
    """Weights give way to weights; beside an adapter, say, they stay."""
    return _is_weight_file(name) and any(map(_is_weight_file, fresh))


def _is_weight_file(name: str) -> bool:
    return name.startswith("model") and (name.endswith(".safetensors") or name.endswith(".safetensors.index.json"))
