"""Pass keys in repeated filler (Mohtashami & Jaggi 2305.16300): whether a model finds what stands far behind."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hf_posswap.evaluation.retrieval.haystacks import FILLER, RepeatedText
from hf_posswap.evaluation.retrieval.pieces import Pieces
from hf_posswap.evaluation.retrieval.puzzles import one_key
from hf_posswap.evaluation.retrieval.results import RetrievalResult
from hf_posswap.evaluation.retrieval.trials import Trials, measure_trials
from hf_posswap.evaluation.running import Running

if TYPE_CHECKING:
    from typing_extensions import Unpack


def passkey(
    model: Any,
    tokenizer: Any,
    lengths: Sequence[int],
    *,
    depths: Sequence[float] | None = None,
    trials: int = 200,
    digits: int = 5,
    bos: bool | None = None,
    seed: int = 0,
    tokens_per_batch: int = 8192,
    **run: "Unpack[Running]",
) -> RetrievalResult:
    """A key of `digits` random digits, hidden in repeated sentences and asked for at the end.

    Prompts have exactly as many tokens as `lengths` say, answer included, and every trial a key of its own. There are
    `trials` for each length, with the key at a depth drawn uniformly; or, with `depths`, for each length and depth.
    200 give an exact 95 % interval of at most 14 points. `bos=None` puts a BOS in front when the tokenizer does.
    `scoring.py` says what is scored, and why one forward pass shows what greedy decoding gives.

    Raises:
        EvaluationError: no causal language model; a tokenizer that gives neither digits nor letters one token each;
            more tokens than the model has positions for, or fewer than the prompt takes; numbers out of their range;
            or likelihoods that are not finite.
    """
    pieces = Pieces(tokenizer, digits, bos)
    haystack = RepeatedText(pieces.text(FILLER))
    grid = Trials(pieces, haystack, {"passkey": one_key}, lengths, depths, trials, seed)
    return measure_trials("passkey", model, grid, tokens_per_batch=tokens_per_batch, **run)
