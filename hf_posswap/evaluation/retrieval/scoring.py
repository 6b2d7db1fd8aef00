"""What a model makes of a prompt's answer, in one forward pass."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.output_head import hidden_states_and_head
from hf_posswap.evaluation.token_nll import CHUNK_ELEMENTS, evaluating, refuse_unknown_tokens


class Score(NamedTuple):
    """Of one prompt."""

    exact: bool
    """Greedy decoding gives the whole answer."""
    right: int
    """Answer tokens that are the likeliest of the alphabet, given the right ones before."""
    nll: float
    """Of the answer, in nats, summed over its tokens."""


def score(model: Any, input_ids: Tensor, answer_tokens: int, alphabet: Tensor) -> list[Score]:
    """Scores prompts with their answers behind them, `[B, L]`, the last `answer_tokens` of each being the answer.

    Greedy decoding is not run, and need not be: its first token is the likeliest after the prompt; if that is the
    answer's first, its second is the likeliest after prompt and first answer token, and so on. So it gives the whole
    answer just when at every answer position the likeliest token, given the right ones before, is the right one; and
    that is in the logits of one pass over prompt and answer. What it takes is that logits do not depend on later
    tokens, which rotary frequencies chosen by the length of the call (`mode="call"`) break: there all answer tokens
    are read at the frequencies of the whole length. Settings of `generate` (repetition penalty, an early end) have no
    part in it.

    `alphabet [N]` are the tokens that could stand in an answer. The head runs on the answers' positions only.

    Raises:
        EvaluationError: as `token_nll`; or likelihoods that are not finite.
    """
    refuse_unknown_tokens(model, input_ids)
    with evaluating(model):
        hidden, head = hidden_states_and_head(model, {"input_ids": input_ids.to(model.device), "use_cache": False})
        before = hidden[:, -answer_tokens - 1 : -1].flatten(0, 1)
        answers = input_ids[:, -answer_tokens:].to(before.device)
        chunk = max(1, CHUNK_ELEMENTS // head(before[:1]).shape[-1])
        parts = zip(before.split(chunk), answers.flatten().split(chunk), strict=True)
        found = [_score_tokens(head(part), targets, alphabet.to(before.device)) for part, targets in parts]
    likeliest, right, nll = (torch.cat(each).view_as(answers) for each in zip(*found, strict=True))
    if not nll.isfinite().all():
        raise EvaluationError(f"The model gives a likelihood that is not finite at {input_ids.shape[1]} tokens.")
    rows = zip(likeliest.all(1).tolist(), right.sum(1).tolist(), nll.double().sum(1).tolist(), strict=True)
    return [Score(*row) for row in rows]


def _score_tokens(logits: Tensor, targets: Tensor, alphabet: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of `targets [N]` under `logits [N, V]`: are they the likeliest of all, and of the alphabet, and their NLL."""
    exact = logits if logits.dtype == torch.float64 else logits.float()
    right = alphabet[exact[:, alphabet].argmax(-1)] == targets
    return exact.argmax(-1) == targets, right, cross_entropy(exact, targets, reduction="none")
