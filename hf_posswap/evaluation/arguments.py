"""What measurements can be asked for: arguments checked before anything runs."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import torch

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.reading import SHUFFLED
from hf_posswap.evaluation.token_nll import refuse_unknown_tokens
from hf_posswap.evaluation.windows import BOS, PROTOCOLS, Layout


def refuse_other(name: str, given: Any, choices: Sequence[Any]) -> None:
    """Raises EvaluationError unless the argument is one of its choices."""
    if given not in choices:
        raise EvaluationError(f"{name} is one of {', '.join(map(repr, choices))}, not {given!r:.60}.")


def whole(name: str, given: Any, least: int = 1) -> int:
    """Raises EvaluationError unless it is a whole number from `least` up."""
    if isinstance(given, bool) or not isinstance(given, Integral) or given < least:
        raise EvaluationError(f"{name} is a whole number from {least} up, not {given!r:.60}.")
    return int(given)


def wanted_lengths(lengths: Sequence[int], least: int = 2) -> list[int]:
    """Each once, shortest first; one number stands for a list of it.

    Raises:
        EvaluationError: one is no whole number from `least` up, or there is none.
    """
    given = list(lengths) if isinstance(lengths, Iterable) else [lengths]
    wrong = [each for each in given if isinstance(each, bool) or not isinstance(each, Integral) or each < least]
    if wrong or not given:
        raise EvaluationError(f"lengths are one or more whole numbers of tokens from {least} up, not {lengths!r:.60}.")
    return sorted({int(length) for length in given})


def layouts_for(lengths: Sequence[int], stride: int | None, protocol: str, bos: str) -> list[Layout]:
    """One for each length, shortest first.

    Raises:
        EvaluationError: an argument is not what it may be.
    """
    wanted = wanted_lengths(lengths)
    refuse_other("protocol", protocol, PROTOCOLS)
    refuse_other("bos", bos, BOS)
    if stride is not None and protocol != "sliding":
        raise EvaluationError(f'A stride is of protocol "sliding"; {protocol!r} has none.')
    whole_stride = isinstance(stride, Integral) and not isinstance(stride, bool)
    if stride is not None and not (whole_stride and 1 <= stride < wanted[0]):
        raise EvaluationError(
            f"stride is a whole number from 1 to {wanted[0] - 1}, 1 less than the shortest length, so that every token "
            f"has a context; not {stride!r:.60}."
        )
    return [Layout(protocol, length, wanted[-1], None if stride is None else int(stride), bos) for length in wanted]


def refuse_control(control: str | None, protocol: str) -> None:
    """Raises EvaluationError for a control that is unknown, or that a protocol has no use for."""
    refuse_other("control", control, (None, SHUFFLED))
    if control is not None and protocol != "sliding":
        raise EvaluationError(
            f'control {control!r} is of protocol "sliding": in {protocol!r} windows all tokens are scored, and none is '
            "in front of them to be shuffled."
        )


def refuse_batch(tokens_per_batch: int) -> None:
    """Raises EvaluationError for what is no number of tokens."""
    whole("tokens_per_batch", tokens_per_batch)


def bos_token_for(model: Any, bos: str, given: int | None) -> int | None:
    """The id that `bos` needs, the config's by default; None for bos "none".

    Raises:
        EvaluationError: there is none, or the model does not know it.
    """
    if bos == "none":
        return None
    token = getattr(model.config.get_text_config(), "bos_token_id", None) if given is None else given
    if not isinstance(token, Integral):
        raise EvaluationError(f"bos {bos!r} needs a token, and the model's config has none: give bos_token_id.")
    refuse_unknown_tokens(model, torch.tensor([token]))
    return int(token)
