"""What the writing commands share: try it on a model without weights, then do it, and say what was done.

The try runs the same calls as the real thing, so that it refuses what that would refuse and tells what that would
write, in the time and memory of a config.
"""

import argparse
import contextlib
import copy
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from hf_posswap.cli.checkpoints import (
    fitting_class,
    loads_with,
    read_config,
    read_model,
    read_tokenizer,
    reading,
    scheme_in_words,
)
from hf_posswap.errors import CheckpointError
from hf_posswap.families import family_of
from hf_posswap.families.base import accepted_length
from hf_posswap.patching import scheme_of
from hf_posswap.persistence import save

Change = Callable[[Any, Any], Any]
"""What a command does with a model and its tokenizer, in place."""


def rewrite(args: argparse.Namespace, change: Change) -> str:
    """Saves the model at `args.model`, changed, to `args.out`, and says what; with `--dry-run` it only says it."""
    refuse_out(args)
    config = read_config(args.model)
    tokenizer = read_tokenizer(args.model)
    draft = without_weights(args, config)
    with torch.device("meta"):
        change(draft, tokenizer)
    if args.dry_run:
        return _said(args, draft)
    model = read_model(args, config)
    change(model, tokenizer)
    save(model, args.out, tokenizer=tokenizer)
    return _said(args, model)


def refuse_out(args: argparse.Namespace) -> None:
    """What `save` would do too late, or not at all.

    Raises:
        CheckpointError: OUT is the model itself, is a file, has something in it already, or cannot be made.
    """
    out, model = Path(args.out), Path(args.model)
    if not out.exists():
        _refuse_place(out)
        return
    if not out.is_dir():
        raise CheckpointError(f"{out} is a file; a model is saved into a directory.")
    if model.exists() and out.samefile(model):
        raise CheckpointError(f"{out} is the model itself, which is never written over: save to another directory.")
    if any(out.iterdir()) and not args.overwrite:
        raise CheckpointError(f"{out} is not empty; --overwrite replaces the model in it and keeps other files.")
    _refuse_place(out)


def _refuse_place(out: Path) -> None:
    """A new directory beside `out` takes what is written until it is complete."""
    parent = Path(os.path.realpath(out)).parent
    there = next(folder for folder in (parent, *parent.parents) if os.path.lexists(folder))
    if not there.is_dir():
        raise CheckpointError(f"{out} cannot be made: {there} is no directory.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise CheckpointError(f"{out} cannot be written: {there} is not writable.")


def without_weights(args: argparse.Namespace, config: Any) -> Any:
    """The model as `read_model` gives it, its parameters on the meta device: they have shapes and take no memory.

    A dry run reads the names and shapes in the files of a directory. All else is taken from the config, because weights
    on the Hub are not fetched for it.
    """
    config = copy.deepcopy(config)
    if args.dry_run and Path(args.model).is_dir():
        with _without_progress():
            return read_model(args, config, device_map="meta")
    config.max_position_embeddings = accepted_length(config)
    with reading(args.model), torch.device("meta"):
        return fitting_class(config, args.auto_class).from_config(config)


@contextlib.contextmanager
def _without_progress() -> Iterator[None]:
    """No "Loading weights" where none are."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def outcome(args: argparse.Namespace, model: Any) -> dict[str, Any]:
    """What a command made of a model, as plain JSON values."""
    config, scheme = model.config, scheme_of(model)
    native = loads_with(config) == loads_with(None)
    return {
        "out": args.out,
        "written": not args.dry_run,
        "architecture": type(model).__name__,
        "scheme": scheme.to_dict(),
        "trained_length": family_of(config).geometry(config).trained_length,
        "length": config.max_position_embeddings,
        "native": native,
        "loads_with": loads_with(config),
        "stock_differs": scheme.stock_differs if native else None,
    }


def _said(args: argparse.Namespace, model: Any) -> str:
    facts = outcome(args, model)
    if args.json:
        return json.dumps(facts, indent=2)
    what = f"{facts['architecture']} with {scheme_in_words(facts['scheme'])}, length {facts['length']}"
    differs = f"; {facts['stock_differs']}" if facts["stock_differs"] else ""
    unwritten = "" if facts["written"] else "nothing was written; it would be "
    return f"{args.out}: {unwritten}{what}; loads with {facts['loads_with']}{differs}"
