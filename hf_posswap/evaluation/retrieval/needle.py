"""A needle in a haystack of the user's own text, by depth and length."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hf_posswap.evaluation.documents import Documents, long_enough
from hf_posswap.evaluation.retrieval.haystacks import Stretches
from hf_posswap.evaluation.retrieval.pieces import Pieces
from hf_posswap.evaluation.retrieval.puzzles import one_key
from hf_posswap.evaluation.retrieval.results import RetrievalResult
from hf_posswap.evaluation.retrieval.trials import Trials, measure_trials
from hf_posswap.evaluation.running import Running

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEPTHS = tuple(tenths / 10 for tenths in range(11))


def needle(
    model: Any,
    tokenizer: Any,
    documents: Documents,
    lengths: Sequence[int],
    *,
    depths: Sequence[float] = DEPTHS,
    trials: int = 20,
    digits: int = 5,
    bos: bool | None = None,
    seed: int = 0,
    tokens_per_batch: int = 8192,
    **run: "Unpack[Running]",
) -> RetrievalResult:
    """As `passkey`, in a stretch of `documents` that every trial draws anew, at each of `depths`.

    There are `trials` for each length and depth: by default 220 for each length, which `result.at(length)` sums up.
    Documents are tokens of this tokenizer; those shorter than the longest length are skipped and reported.

    Raises:
        EvaluationError: as `passkey`; or no document is long enough.
    """
    pieces = Pieces(tokenizer, digits, bos)
    found, skipped = long_enough(documents, max(lengths, default=0))
    grid = Trials(pieces, Stretches(found), {"needle": one_key}, lengths, depths, trials, seed)
    return measure_trials("needle", model, grid, skipped=skipped, tokens_per_batch=tokens_per_batch, **run)
