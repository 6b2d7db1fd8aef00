"""Every head class of every architecture: patched, run, undone, saved and loaded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pairs import close, draw_position_parameters
from tiny import redraw, tiny_config
from transformers.models.auto import modeling_auto

import hf_posswap as hp
from hf_posswap.families import MODEL_TYPES

SCHEMES = (hp.YaRN(factor=2.0), hp.T5Bias(), hp.Sinusoidal())


def head_classes() -> list[tuple[str, str]]:
    """Every Auto class that knows the model type, one for each different model class."""
    found: dict[tuple[str, type], str] = {}
    for name, auto in vars(modeling_auto).items():
        if name == "AutoModelForDecision":  # experimental, and builds from a config of its own
            continue
        if name.startswith("AutoModel") and getattr(auto, "_model_mapping", None) is not None:
            for model_type in MODEL_TYPES:
                config = type(tiny_config(model_type))
                if config in auto._model_mapping:
                    found.setdefault((model_type, auto._model_mapping[config]), name)
    return [(model_type, auto) for (model_type, _), auto in found.items()]


def build(model_type: str, auto: str) -> Any:
    config = (
        tiny_config(model_type, is_decoder=True) if auto == "AutoModelForCausalLM" and model_type == "bert" else None
    )
    return redraw(getattr(modeling_auto, auto).from_config(config or tiny_config(model_type))).eval()


def outputs(model: Any, ids: torch.Tensor, auto: str) -> torch.Tensor:
    given = ids[None] if auto == "AutoModelForMultipleChoice" else ids
    first = model(given)[0]
    return first.detach()


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
@pytest.mark.parametrize("head", head_classes(), ids="-".join)
def test_every_head(head: tuple[str, str], scheme: Any, tmp_path: Path) -> None:
    model, ids = build(*head), torch.randint(4, 64, (2, 13))
    stock = outputs(model, ids, head[1])
    hp.patch(model, scheme)
    draw_position_parameters(model)
    found = outputs(model, ids, head[1])
    assert (found - stock).abs().max() > 1e-4
    model.save_pretrained(tmp_path / "m")
    loaded = hp.load(tmp_path / "m", auto_class=getattr(modeling_auto, head[1])).eval()
    assert type(loaded) is type(model)
    close(outputs(loaded, ids, head[1]), found, 1e-6)
    assert torch.equal(outputs(hp.unpatch(model), ids, head[1]), stock)


def test_there_are_heads_for_every_architecture() -> None:
    assert {model_type for model_type, _ in head_classes()} == set(MODEL_TYPES)
    assert len(head_classes()) >= 20
