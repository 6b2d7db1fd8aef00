"""`hf-posswap export MODEL OUT`: a checkpoint that needs nothing of ours, and what other programs will do with it."""

import argparse
import json
from typing import Any

from hf_posswap.cli.checkpoints import read_config, read_model, read_tokenizer
from hf_posswap.cli.writing import refuse_out, without_weights
from hf_posswap.errors import CheckpointError
from hf_posswap.patching import scheme_of
from hf_posswap.persistence.export import export
from hf_posswap.persistence.export_plan import plan_export


def run(args: argparse.Namespace) -> str:
    """The report: a table, or with `--json` an object. All that can be refused is refused before weights are read."""
    refuse_out(args)
    config, tokenizer = read_config(args.model), read_tokenizer(args.model)
    _refuse_quantised(config)
    draft = without_weights(args, config)
    plan = plan_export(draft.config, scheme_of(draft), type(draft).__name__, args.out, args.compat, tokenizer)
    if args.dry_run:
        report = plan.report
    else:
        report = export(read_model(args, config), args.out, args.compat, tokenizer=tokenizer)
    if args.json:
        return json.dumps({**report.to_dict(), "written": not args.dry_run}, indent=2)
    return f"nothing was written; it would be\n{report}" if args.dry_run else str(report)


def _refuse_quantised(config: Any) -> None:
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError("The weights are quantised: export the model before it is quantised.")
