"""Hidden states of every layer, one layer at a time, while the model reads."""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from hf_posswap.errors import EvaluationError

Show = Callable[[int, Tensor], None]
"""Takes the number of a layer, 0 for what goes into the first, and hidden states `[B, L, E]`."""


def layers_of(model: Any) -> nn.ModuleList:
    """The layers, first to last.

    Raises:
        EvaluationError: there is no list of as many modules as the config has layers.
    """
    depth = model.config.get_text_config().num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return module
    raise EvaluationError(f"{type(model).__name__} has no list of {depth} layers, so what comes out of them is hidden.")


@contextmanager
def layer_outputs(model: Any, wanted: Container[int], show: Show) -> Iterator[None]:
    """During the block, `show` is called with what goes into the first layer and what comes out of each, if wanted."""
    layers = layers_of(model)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        show(0, args[0] if args else kwargs["hidden_states"])

    def after(number: int) -> Callable[..., None]:
        return lambda module, args, output: show(number, output if isinstance(output, Tensor) else output[0])

    hooks = [layers[0].register_forward_pre_hook(before, with_kwargs=True)] if 0 in wanted else []
    hooks += [layer.register_forward_hook(after(i)) for i, layer in enumerate(layers, 1) if i in wanted]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
