"""A light form of RULER (Hsieh et al. 2404.06654): more than finding the one number in a text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.retrieval.haystacks import FILLER, RepeatedText
from hf_posswap.evaluation.retrieval.pieces import Pieces
from hf_posswap.evaluation.retrieval.puzzles import Task, common_words, multi_key, variable_tracking
from hf_posswap.evaluation.retrieval.results import RetrievalResult
from hf_posswap.evaluation.retrieval.trials import Trials, measure_trials
from hf_posswap.evaluation.running import Running

if TYPE_CHECKING:
    from typing_extensions import Unpack

TASKS: dict[str, Task] = {
    "multi_key": multi_key,
    "variable_tracking": variable_tracking,
    "common_words": common_words,
}
"""A further task is a function in `puzzles.py` and a line here."""


def ruler_lite(
    model: Any,
    tokenizer: Any,
    lengths: Sequence[int],
    tasks: Sequence[str] = tuple(TASKS),
    *,
    trials: int = 200,
    digits: int = 5,
    bos: bool | None = None,
    seed: int = 0,
    tokens_per_batch: int = 8192,
    **run: "Unpack[Running]",
) -> RetrievalResult:
    """Generated tasks in repeated sentences, `trials` of each at each length; every answer is a key as in `passkey`.

    "multi_key": which of four keys belongs to a name. "variable_tracking": which of three values a variable has, two
    assignments away from it. "common_words": which number is the most frequent in a list.

    Raises:
        EvaluationError: as `passkey`; or an unknown task.
    """
    tasks = (tasks,) if isinstance(tasks, str) else tasks
    unknown = [task for task in tasks if task not in TASKS]
    if unknown or not tasks:
        raise EvaluationError(f"tasks are one or more of {list(TASKS)}, not {list(tasks)}.")
    pieces = Pieces(tokenizer, digits, bos)
    haystack, chosen = RepeatedText(pieces.text(FILLER)), {task: TASKS[task] for task in tasks}
    grid = Trials(pieces, haystack, chosen, lengths, None, trials, seed)
    return measure_trials("ruler_lite", model, grid, tokens_per_batch=tokens_per_batch, **run)
