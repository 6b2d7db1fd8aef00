"""Models that accelerate has put its hooks on: the scheme holds, or the order is in the refusal."""

from typing import Any

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from pairs import build, close, example, pairs, tokens

import hf_posswap as hp
from hf_posswap.families import family_of

FAMILIES = ("gpt2", "bert", "llama")


def dispatched(model: Any) -> Any:
    return dispatch_model(model, {"": "cpu"}, force_hooks=True)


@pairs(FAMILIES)
@torch.no_grad()
def test_dispatched_after_patching(pair: Any) -> None:
    kind, scheme = pair
    ids = tokens()
    expected = hp.patch(build(kind), example(scheme))(ids).logits
    close(dispatched(hp.patch(build(kind), example(scheme)))(ids).logits, expected, 1e-6)
    offloaded = cpu_offload(hp.patch(build(kind), example(scheme)), execution_device=torch.device("cpu"))
    close(offloaded(ids).logits, expected, 1e-6)


@pairs(FAMILIES)
@torch.no_grad()
def test_dispatched_before_patching(pair: Any) -> None:
    kind, scheme = pair
    model, ids = dispatched(build(kind)), tokens()
    geometry = family_of(model.config).geometry(model.config)
    if example(scheme).resolve(geometry).encodings(geometry).rotary is not None and kind != "llama":
        with pytest.raises(hp.FamilyError, match="patch the model first, then dispatch"):
            hp.patch(model, example(scheme))
    else:
        hp.patch(model, example(scheme))
        close(model(ids).logits, hp.patch(build(kind), example(scheme))(ids).logits, 1e-6)
        hp.unpatch(model)
    close(model(ids).logits, build(kind)(ids).logits, 1e-6)


@pytest.mark.parametrize("kind", FAMILIES)
def test_offloaded_weights_are_refused(kind: str) -> None:
    model = cpu_offload(build(kind), execution_device=torch.device("cpu"))
    with pytest.raises(hp.FamilyError, match="offloaded by accelerate: patch it first"):
        hp.patch(model, hp.T5Bias())
