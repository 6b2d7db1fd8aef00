"""Property 2: what was asked for is what the network computes, forward and gradient, against oracles."""

from typing import Any

import torch
from oracles import oracle_logits
from pairs import LENGTH, build, close, draw_position_parameters, example, is_patched, pairs, position_parameters

import hf_posswap as hp
from hf_posswap.families import family_of


@pairs()
def test_logits_and_gradients_are_those_of_the_oracle(pair: Any) -> None:
    kind, scheme = pair
    stock, model = build(kind).double(), hp.patch(build(kind).double(), example(scheme))
    if not is_patched(model):
        assert hp.scheme_of(stock) == hp.scheme_of(model)
        return
    draw_position_parameters(model)
    embeddings = torch.randn(2, LENGTH, model.config.hidden_size, dtype=torch.float64, requires_grad=True)
    wanted = [embeddings, *position_parameters(model).values()]
    found, expected = model(inputs_embeds=embeddings).logits, oracle_logits(stock, model, embeddings)
    close(found, expected, 1e-5)
    direction = torch.randn_like(found)
    gradients = (torch.autograd.grad((logits * direction).sum(), wanted) for logits in (found, expected))
    for mine, theirs in zip(*gradients, strict=True):
        assert theirs.abs().sum() > 0
        close(mine, theirs, 1e-4)


@pairs()
def test_the_scheme_is_the_one_that_was_asked_for(pair: Any) -> None:
    kind, scheme = pair
    model = hp.patch(build(kind), example(scheme))
    found = hp.scheme_of(model)
    assert type(found) is scheme
    assert found == example(scheme).resolve(family_of(model.config).geometry(build(kind).config))
    for name, value in example(scheme).to_dict().items():
        assert value is None or isinstance(value, (dict, list)) or getattr(found, name) == value
    assert hp.scheme_of(model.config) == found


@pairs()
def test_schemes_of_other_pairs_give_other_logits(pair: Any) -> None:
    kind, scheme = pair
    model = hp.patch(build(kind), example(scheme))
    draw_position_parameters(model)
    stock = build(kind)
    if is_patched(model):
        ids = torch.randint(4, 64, (2, LENGTH))
        assert (model(ids).logits - stock(ids).logits).abs().max() > 1e-3
