"""The model of transformers inside of what PEFT and `torch.compile` wrap around one."""

from typing import Any


def bare(model: Any) -> Any:
    """The model that has the scheme; itself when nothing is around it."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif hasattr(model, "get_base_model"):
            model = model.get_base_model()
        else:
            return model
