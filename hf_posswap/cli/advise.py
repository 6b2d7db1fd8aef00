"""`hf-posswap advise MODEL --max-length N --text SOURCE`: tries the ways to a longer context."""

import argparse
from typing import Any

import torch

from hf_posswap.cli.measuring import (
    finished,
    open_config,
    open_documents,
    open_draft,
    open_model,
    open_tokenizer,
    processes,
    refuse_output,
    running,
)
from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.advice import Advice, advise, fitting_trials
from hf_posswap.evaluation.comparison import likelihood_of
from hf_posswap.evaluation.documents import long_enough
from hf_posswap.evaluation.pseudo_perplexity import pseudo_perplexity


def run(args: argparse.Namespace) -> str:
    """The ranking, and the command that applies the best; or with `--json` the result."""
    refuse_output(args)
    config = open_config(args)
    draft = open_draft(args, config)
    with torch.device("meta"):
        fitting_trials(draft, args.max_length, args.original_max_position_embeddings)
    masked = likelihood_of(draft) is pseudo_perplexity
    if args.positions is not None and not masked:
        raise EvaluationError(f"--positions is of masked language models, and {type(draft).__name__} is none.")
    with processes(args) as accelerator:
        tokenizer = open_tokenizer(args, needed=masked)
        documents = open_documents(args, tokenizer, accelerator)
        long_enough(documents, args.max_length)
        given: dict[str, Any] = {"tokenizer": tokenizer, "positions": args.positions} if masked else {}
        for name in ("windows", "original_max_position_embeddings"):
            if getattr(args, name) is not None:
                given[name] = getattr(args, name)
        model = open_model(args, config, accelerator)
        advice = advise(model, args.max_length, documents, seconds=args.seconds, **given, **running(args, accelerator))
        said = finished(args, accelerator, [advice], documents)
    return said if args.json or not said else f"{said}\n\n{_last_words(advice)}"


def _last_words(advice: Advice) -> str:
    """The command of the best extension; before it, where that is so, that none is worth it."""
    if advice.candidates[0] is advice.best:
        return advice.best.command
    return (
        f"No extension beats the model as it is at {advice.length:,} tokens on this text. The best of them is applied "
        f"by:\n{advice.best.command}"
    )
