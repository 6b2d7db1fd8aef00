"""What the commands that measure share: the text, the model on its device, and where results go.

All that can be refused is refused before weights are read: a model without weights wears every scheme first.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from hf_posswap.cli.checkpoints import read_config, read_model, read_tokenizer
from hf_posswap.cli.printed import printed
from hf_posswap.cli.writing import without_weights
from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.documents import Document
from hf_posswap.evaluation.results import ModelResult, save_results
from hf_posswap.evaluation.sources import read_documents

MOST_NAMED = 5
"""Documents that are left out and named."""


def refuse_output(args: argparse.Namespace) -> None:
    """Raises EvaluationError when the results could not be written."""
    if args.output is None:
        return
    output = Path(args.output)
    if output.is_dir():
        raise EvaluationError(f"{output} is a directory; name a file for the results.")
    if output.exists() and not args.overwrite:
        raise EvaluationError(f"{output} exists already; --overwrite replaces it.")
    folder = output.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise EvaluationError(f"{output} cannot be written: {folder} is no directory that can be written to.")


@contextmanager
def processes(args: argparse.Namespace) -> Iterator[Accelerator]:
    """The processes that this one was started with, or it alone, and their devices."""
    accelerator = Accelerator(cpu=args.cpu or not torch.accelerator.is_available())
    try:
        yield accelerator
    finally:
        accelerator.end_training()


def open_config(args: argparse.Namespace) -> Any:
    """The model's config, with the attention implementation that was typed."""
    config = read_config(args.model)
    if args.attn_implementation is not None:
        config._attn_implementation = args.attn_implementation
    return config


def open_draft(args: argparse.Namespace, config: Any) -> Any:
    """The model without weights."""
    draft = without_weights(args, config)
    if draft.config.is_encoder_decoder:
        raise EvaluationError(f"{type(draft).__name__} has an encoder and a decoder, which nothing here measures.")
    return draft


def open_tokenizer(args: argparse.Namespace, *, needed: bool) -> Any:
    """The one that was typed, or the one beside the model; None when there is none, and it is not `needed`.

    Raises:
        EvaluationError: there is none, and it is.
    """
    tokenizer = read_tokenizer(args.tokenizer or args.model)
    if tokenizer is None and (needed or args.tokenizer is not None):
        raise EvaluationError(f"There is no tokenizer in {args.tokenizer or args.model}: --tokenizer names one.")
    return tokenizer


def open_documents(args: argparse.Namespace, tokenizer: Any, accelerator: Accelerator) -> list[Document]:
    """The text that was typed, as tokens."""
    if args.text is None:
        raise EvaluationError("A text is needed: --text takes a file, a folder, or the name of a data set.")
    with accelerator.main_process_first():  # a data set is fetched once
        return read_documents(args.text, tokenizer, field=args.field, split=args.split, most=args.documents)


def open_model(args: argparse.Namespace, config: Any, accelerator: Accelerator) -> Any:
    """The model with its weights, on this process's device."""
    options = {} if args.dtype is None else {"dtype": args.dtype}
    return read_model(args, config, **options).to(accelerator.device).eval()


def running(args: argparse.Namespace, accelerator: Accelerator) -> dict[str, Any]:
    """Arguments of every measurement."""
    state = args.state or (args.output and f"{args.output}.state")
    batch = {} if args.tokens_per_batch is None else {"tokens_per_batch": args.tokens_per_batch}
    return {"accelerator": accelerator, "state": state, "progress": True, **batch}


def finished(
    args: argparse.Namespace, accelerator: Accelerator, results: Sequence[ModelResult], documents: Sequence[Document]
) -> str:
    """Writes the results and returns what is to be printed; nothing but in the main process."""
    if not accelerator.is_main_process:
        return ""
    _say_skipped(documents, results)
    if args.output is not None:
        save_results(results, args.output)
        if args.state is None:
            _remove_state(Path(f"{args.output}.state"))
    if args.json:
        return json.dumps({"results": [result.to_dict() for result in results]}, indent=2)
    return printed(results)


def _remove_state(state: Path) -> None:
    """What one process, or each of several, has kept."""
    for file in [state, *state.absolute().parent.glob(f"{state.name}.*")]:
        if file == state or file.suffix[1:].isdecimal():
            file.unlink(missing_ok=True)


def _say_skipped(documents: Sequence[Document], results: Sequence[Any]) -> None:
    """Names the documents that were too short, on stderr."""
    for indices in dict.fromkeys(getattr(result, "skipped", ()) for result in results):
        if indices:
            named = [f"{documents[i].name or f'number {i}'} ({len(documents[i])} tokens)" for i in indices[:MOST_NAMED]]
            more = len(indices) - len(named)
            names = ", ".join(named) + (f" and {more} more" if more else "")
            print(f"hf-posswap: left out as too short: {names} of {len(documents)} documents", file=sys.stderr)
