"""export: a checkpoint that needs nothing of ours, and a report on what others will do with it.

Only what transformers computes exactly is exported: the finished config is given to its own rotary module, and refused
where another function comes out. Of other readers the report tells, because a checkpoint cannot stop them.
"""

import copy
import json
import os
from pathlib import Path
from typing import Any, Literal

import torch

from hf_posswap.errors import CheckpointError, FamilyError
from hf_posswap.patching import scheme_of
from hf_posswap.patching.checks import refuse_wrapped
from hf_posswap.persistence import save
from hf_posswap.persistence.export_plan import plan_export
from hf_posswap.persistence.export_report import ExportReport

Compat = Literal["v5", "v4+v5"]
COMPATS = ("v5", "v4+v5")


def export(model: Any, path: str | os.PathLike[str], compat: Compat = "v5", tokenizer: Any = None) -> ExportReport:
    """Writes a plain checkpoint of the model's scheme, all or nothing, and reports what each reader will do with it.

    The model, patched or not, stays as it is. `compat="v4+v5"` adds the keys of transformers 4 (`rope_scaling`,
    `rope_theta`), which mlx-lm and older programs read. A tokenizer is saved along, its `model_max_length` raised to
    the model's where it is shorter.

    Raises:
        SchemeError: transformers cannot express the scheme exactly; the message says what would be right.
        FamilyError: the model is not supported, or is wrapped.
        CheckpointError: `path` is a file, or the weights are quantised.
    """
    if compat not in COMPATS:
        raise CheckpointError(f"compat is one of {', '.join(COMPATS)}, not {compat!r}.")
    refuse_wrapped(model)
    plan = plan_export(model.config, scheme_of(model), type(model).__name__, path, compat, tokenizer)
    bare = _bare_model(model, plan.config)
    save(_Plain(bare, plan.keys), path, tokenizer=_long_enough(tokenizer, plan.report.length))
    return plan.report


def _long_enough(tokenizer: Any, length: int) -> Any:
    """The tokenizer, or a copy that accepts `length` tokens: vLLM takes the shorter of the two lengths."""
    if tokenizer is None or tokenizer.model_max_length >= length:
        return tokenizer
    longer = copy.deepcopy(tokenizer)
    longer.model_max_length = length
    return longer


def _bare_model(model: Any, config: Any) -> Any:
    """A stock model of the same class around the very weights of `model`; nothing is copied.

    Raises:
        CheckpointError: the weights are not those of a stock model.
        FamilyError: they are not there.
    """
    if getattr(model, "is_quantized", False):
        raise CheckpointError("The weights are quantised: export the model before it is quantised.")
    weights = model.state_dict()
    absent = [name for name, tensor in weights.items() if tensor.is_meta]
    if absent:
        raise FamilyError(f"The model has no values for {absent[0]}: load its weights, not spread over other devices.")
    with torch.device("meta"):
        bare = type(model)(config)
    try:
        bare.load_state_dict(weights, strict=True, assign=True)
    except RuntimeError as error:
        raise CheckpointError(f"The weights are not those of a stock {type(model).__name__}: {error}") from error
    if getattr(model, "generation_config", None) is not None:
        bare.generation_config = copy.deepcopy(model.generation_config)
    return bare


class _Plain:
    """What `save` saves: a stock model, with keys in its `config.json` that transformers would not write."""

    def __init__(self, model: Any, keys: dict[str, Any]) -> None:
        self.model, self.keys = model, keys

    def save_pretrained(self, directory: Path, **kwargs: Any) -> None:
        self.model.save_pretrained(directory, **kwargs)
        file = directory / "config.json"
        written = {**json.loads(file.read_text()), **self.keys}
        file.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
