"""`hf-posswap schemes`: what there is, from the registry alone."""

import argparse
import json
from dataclasses import MISSING, Field, fields
from typing import Any

from hf_posswap.schemes import SCHEMES, Scheme
from hf_posswap.schemes.fields import describe


def run(args: argparse.Namespace) -> str:
    """A table, or with `--json` a list."""
    rows = [_scheme_row(scheme) for scheme in SCHEMES]
    return json.dumps(rows, indent=2) if args.json else _table(rows)


def _scheme_row(scheme: type[Scheme]) -> dict[str, Any]:
    row = {"name": scheme.name, "class": scheme.__name__, "kind": scheme.kind, "source": scheme.source}
    return {**row, "fields": [_field_row(declared) for declared in fields(scheme)]}


def _field_row(declared: Field) -> dict[str, Any]:
    required = declared.default is MISSING
    row: dict[str, Any] = {"name": declared.name, "required": required, "accepts": describe(declared)}
    return row if required else {**row, "default": declared.default}


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'NAME':12}{'CLASS':14}{'KIND':8}SOURCE"]
    for row in rows:
        lines.append(f"{row['name']:12}{row['class']:14}{row['kind']:8}{row['source']}")
        lines += [f"  {_option(field):36}{_default(field):14}{field['accepts']}" for field in row["fields"]]
    return "\n".join(lines)


def _option(field: dict[str, Any]) -> str:
    return "--" + field["name"].replace("_", "-")


def _default(field: dict[str, Any]) -> str:
    return "required" if field["required"] else str(field["default"]).lower()
