"""The measurements that can be asked for by name. Neither torch nor transformers is loaded to name them."""

import inspect
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from hf_posswap.errors import EvaluationError

MEASURES: dict[str, tuple[str, ...]] = {
    "perplexity": ("protocol", "stride", "reduction", "bos", "control"),
    "pseudo_perplexity": ("form", "positions", "seed"),
    "nll_by_position": ("bos",),
    "long_ppl": (),
    "passkey": ("trials", "seed"),
    "needle": ("trials", "seed"),
    "ruler_lite": ("trials", "seed"),
    "position_probe": ("seed",),
    "attention_profile": (),
}
"""Functions of `hf_posswap.evaluation` by name, with the options of the command line that are arguments of theirs. What
else they are called with (model, tokenizer, documents, lengths ...) goes by the names in their signatures. A new one is
a line here."""

RUNNING = ("accelerator", "state", "progress")
"""What all of them take: `hf_posswap.evaluation.running.Running`."""

OPTIONS = {option for options in MEASURES.values() for option in options} - {"control"}


def function_of(measure: str) -> Any:
    """The function of that name."""
    return getattr(import_module("hf_posswap.evaluation"), measure)


def takes(measure: str, name: str) -> bool:
    """Whether a measurement has an argument of that name."""
    return name in inspect.signature(function_of(measure)).parameters


def refuse_unused(measures: Iterable[str], given: Iterable[str]) -> None:
    """Raises EvaluationError for an option that none of the measurements has: it would be dropped without a word."""
    used = {option for measure in measures for option in MEASURES[measure]}
    for option in given:
        if option not in used:
            owners = [measure for measure, options in MEASURES.items() if option in options]
            raise EvaluationError(f"--{option} is an option of {', '.join(owners)}, not of {', '.join(measures)}.")


def call(measure: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """The measurement, with what it asks for of all that is `known` and of the options that were `given`."""
    function = function_of(measure)
    arguments = {name: known[name] for name in inspect.signature(function).parameters if name in known}
    run = {name: known[name] for name in RUNNING}
    options = {name: given[name] for name in MEASURES[measure] if name in given}
    return function(**arguments, **run, **options)
