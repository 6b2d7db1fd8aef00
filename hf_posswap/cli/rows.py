"""Measurements of one model under several schemes, on the same text: what `evaluate` and `compare` do."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator

from hf_posswap.cli.measures import MEASURES, OPTIONS, call, refuse_unused, takes
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
from hf_posswap.evaluation.comparison import Row, likelihood_of, refuse_unfit, rows_of, wearing
from hf_posswap.evaluation.documents import Document, long_enough
from hf_posswap.evaluation.results import ModelResult, subject_of
from hf_posswap.evaluation.token_nll import position_limit
from hf_posswap.schemes import Scheme

TIMES_TRAINED = (1, 2, 4)
SPECIAL_TOKENS = 2
"""That a measurement puts around a text, at most."""


def measure_rows(args: argparse.Namespace, schemes: Mapping[str, Scheme | None]) -> str:
    """The tables, or with `--json` the results, of what was asked for under each scheme; a label of "" is that of the
    model itself."""
    refuse_output(args)
    config = open_config(args)
    draft = open_draft(args, config)
    rows = rows_of({label or subject_of(draft).label: scheme for label, scheme in schemes.items()}, args.control)
    measures = args.measure or [likelihood_of(draft).__name__]
    options = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    refuse_unused(measures, [*options, *(["control"] if any(row.control for row in rows) else [])])
    _refuse_unfit(draft, rows, 0)
    with processes(args) as accelerator:
        known = _known(args, draft, rows, measures, accelerator)
        options = {**_bos(measures, known), **options}
        model = open_model(args, config, accelerator)
        known |= {"model": model, **running(args, accelerator)}
        return finished(args, accelerator, _measured(rows, measures, known, options), known["documents"])


def _refuse_unfit(draft: Any, rows: Sequence[Row], longest: int) -> None:
    with torch.device("meta"):
        refuse_unfit(draft, rows, longest)


def _known(
    args: argparse.Namespace, draft: Any, rows: Sequence[Row], measures: Sequence[str], accelerator: Accelerator
) -> dict[str, Any]:
    """What measurements may ask for, by the names of their arguments.

    Raises:
        EvaluationError: something that they need is missing, or text and lengths do not fit each other.
    """
    on_text = any(takes(measure, "documents") for measure in measures)
    tokenizer = open_tokenizer(args, needed=any(takes(measure, "tokenizer") for measure in measures))
    documents = open_documents(args, tokenizer, accelerator) if on_text else []
    lengths = args.lengths or _default_lengths(draft, rows, documents)
    if on_text:
        _refuse_short(documents, max(lengths))
    _refuse_unfit(draft, rows, max(lengths))
    known = {"tokenizer": tokenizer, "documents": documents, "lengths": lengths, "length": max(lengths)}
    if min(lengths) < max(lengths):
        known["short_length"] = min(lengths)
    elif any(takes(measure, "short_length") for measure in measures):
        raise EvaluationError("long_ppl compares two lengths: --lengths SHORT,LONG.")
    if tokenizer is not None and tokenizer.bos_token_id is not None:
        known["bos_token_id"] = tokenizer.bos_token_id
    return known


def _refuse_short(documents: Sequence[Document], length: int) -> None:
    """Raises EvaluationError when no document is long enough, in terms of what was typed."""
    try:
        long_enough(documents, length - SPECIAL_TOKENS)
    except EvaluationError:
        long_enough(documents, length)


def _default_lengths(draft: Any, rows: Sequence[Row], documents: Sequence[Document]) -> list[int]:
    """Multiples of the trained length, as far as every row has positions and half of the text is long enough."""
    trained, limits = subject_of(draft).trained_length, []
    if trained is None:
        raise EvaluationError("The config does not say how long the model was trained at: --lengths says what to read.")
    for row in rows:
        with torch.device("meta"), wearing(draft, row.scheme):
            limits.append(position_limit(draft) or trained * max(TIMES_TRAINED))
    sizes = [len(document) for document in documents]
    possible = [trained * times for times in TIMES_TRAINED if trained * times <= min(limits)]
    return [
        length
        for length in possible
        if length == possible[0] or sum(size for size in sizes if size >= length) >= sum(sizes) / 2
    ]


def _bos(measures: Sequence[str], known: Mapping[str, Any]) -> dict[str, str]:
    """Of measurements that have the choice: a BOS in front of each window where the tokenizer puts one in front of a
    text."""
    if not any("bos" in MEASURES[measure] for measure in measures):
        return {}
    bos = known.get("bos_token_id")
    puts_one = bos is not None and known["tokenizer"]("a").input_ids[:1] == [bos]
    return {"bos": "window" if puts_one else "none"}


def _measured(
    rows: Sequence[Row], measures: Sequence[str], known: Mapping[str, Any], options: Mapping[str, Any]
) -> list[ModelResult]:
    """Measurement by measurement within each row; one that has no such control is left out of its row."""
    results = []
    for row in rows:
        with wearing(known["model"], row.scheme):
            for measure in measures:
                if row.control is None or "control" in MEASURES[measure]:
                    found = call(measure, known, {**options, **row.arguments})
                    results.append(found.labelled(row.label))
    return results
