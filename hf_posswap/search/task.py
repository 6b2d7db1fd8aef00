"""What a search is to do, checked before anything is changed."""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hf_posswap.errors import EvaluationError, SchemeError
from hf_posswap.evaluation.token_nll import refuse_non_causal
from hf_posswap.patching import scheme_of
from hf_posswap.patching.checks import checked, refuse_wrapped
from hf_posswap.patching.rescaling import rescaled
from hf_posswap.schemes import Geometry, LinearRoPE, LongRoPE, NTKRoPE, RoPE, Scheme, YaRN
from hf_posswap.schemes.fields import MAX_POSITIONS
from hf_posswap.schemes.rope import RescaledRoPE
from hf_posswap.search.individuals import HEADROOM, Individual, Space, ancestors


@dataclass(frozen=True)
class Task:
    """A search without a model and without a budget."""

    windows: Tensor
    """Calibration tokens `[N, max_length]`."""
    baselines: dict[str, Scheme]
    ancestors: list[Individual]
    space: Space
    like: LongRoPE
    """The scheme of every individual, but for its factors."""
    population: int
    seed: int

    def scheme(self, individual: Individual) -> LongRoPE:
        """What is measured."""
        return replace(self.like, long_factor=individual.factors, attention_factor=individual.attention_factor)


def prepared(
    model: Any,
    documents: Sequence[Tensor],
    max_length: int,
    *,
    windows: int,
    population: int,
    attention_factor: float | str | None,
    original: int | None,
    seed: int,
) -> Task:
    """The task; raises what `search_longrope` says."""
    refuse_wrapped(model)
    max_length = whole("max_length", max_length, low=2, high=MAX_POSITIONS)
    linear, geometry = _linear(model, max_length, original)
    refuse_non_causal(model)
    tokens = _windows(model, documents, max_length, whole("windows", windows, low=1, high=2**20))
    given = _given_attention(attention_factor)
    shared: dict[str, Any] = {"rope_theta": linear.theta, "partial_rotary_factor": linear.part}
    base, _ = checked(model.config, RoPE(**shared), False)
    assert isinstance(base, RoPE)
    rescaled_alike: dict[str, Any] = {
        **shared,
        "factor": linear.factor,
        "original_max_position_embeddings": linear.original,
    }
    others = [linear, *(checked(model.config, c(**rescaled_alike), False)[0] for c in (NTKRoPE, YaRN))]
    first = ancestors(base, others, geometry, linear.factor, given)
    own: dict[str, Any] = {
        "long_factor": first[0].factors,
        "attention_factor": first[0].attention_factor,
        "mode": "static",
    }
    like, _ = checked(model.config, LongRoPE(**rescaled_alike, **own), False)
    assert isinstance(like, LongRoPE)
    return Task(
        windows=tokens,
        baselines={scheme.name: scheme for scheme in (base, *others)},
        ancestors=first,
        space=Space(highest=HEADROOM * like.factor, attention=given == "search"),
        like=like,
        population=whole("population", population, low=len(first), high=2**16),
        seed=whole("seed", seed, low=-(2**63), high=2**63),
    )


def whole(name: str, value: Any, *, low: int, high: int) -> int:
    """Raises EvaluationError unless `value` is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not low <= int(value) <= high:
        raise EvaluationError(f"{name} is a whole number from {low} to {high}, not {value!r:.60}.")
    return int(value)


def _given_attention(value: Any) -> float | str | None:
    if value is None or value == "search":
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 1e-3 <= float(value) <= 1e3:
        raise EvaluationError(f"attention_factor is 'search', None or a number from 0.001 to 1000, not {value!r:.60}.")
    return float(value)


def _linear(model: Any, length: int, original: int | None) -> tuple[LinearRoPE, Geometry]:
    """The model interpolated to `length`, from the length and base that `extend` would go on from; and the geometry."""
    scheme = scheme_of(model)
    if not (type(scheme) is RoPE or isinstance(scheme, RescaledRoPE)):
        raise SchemeError(
            f"This model has {scheme.name}, and LongRoPE rescales RoPE: search on a model with rope, or with a "
            "rescaling of it such as yarn."
        )
    _, geometry = checked(model.config, scheme, False)
    given = {} if original is None else {"original_max_position_embeddings": original}
    linear, geometry = rescaled(model.config, scheme, geometry, LinearRoPE.name, length, given)
    assert isinstance(linear, LinearRoPE)
    return linear, geometry


TOKEN_IDS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _windows(model: Any, documents: Sequence[Tensor], length: int, number: int) -> Tensor:
    """At most `number` windows `[N, length]`, spread evenly over all that the documents have."""
    if not isinstance(documents, Sequence):
        raise EvaluationError("The documents are a list of tensors of token ids [length].")
    for document in documents:
        if not isinstance(document, Tensor) or document.dim() != 1 or document.dtype not in TOKEN_IDS:
            raise EvaluationError("A document is a tensor of token ids [length], as a tokenizer gives them.")
    found = [window for d in documents if len(d) >= length for window in d.unfold(0, length, length)]
    if not found:
        longest = max(map(len, documents), default=0)
        raise EvaluationError(
            f"None of the {len(documents)} documents has {length} tokens (the longest has {longest}): take longer text."
        )
    taken = min(number, len(found))
    tokens = torch.stack([found[i * len(found) // taken].long() for i in range(taken)])
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        raise EvaluationError(
            f"Some token ids do not fit a vocabulary of {vocabulary}: take the model's own tokenizer."
        )
    return tokens
