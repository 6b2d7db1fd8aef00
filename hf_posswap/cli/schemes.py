"""`hf-posswap schemes`: what there is and where it works, from the registries."""

import argparse
import json
from dataclasses import MISSING, Field, fields
from typing import Any

from hf_posswap.cli.where_it_works import EXAMPLE_MEMBERS, Sample, samples, variants
from hf_posswap.cli.wrapping import wrapped
from hf_posswap.families import FAMILIES
from hf_posswap.schemes import SCHEMES, Scheme
from hf_posswap.schemes.fields import describe

LEGEND = f"""\
plain: works, and is saved as a checkpoint that transformers runs by itself (*: as another function where --family F
says so); yes: works, and needs hf_posswap to load; no: refused. CACHE: decoding with a cache of keys. FLASH: flash
attention. Schemes around others are shown around {" and ".join(EXAMPLE_MEMBERS)}. --family F has all model types of a
family, reasons, and the backends that carry a scheme."""


def run(args: argparse.Namespace) -> str:
    """A table, with `--family` one family in words, with `--json` a list."""
    asked = samples(args.family)
    if not args.json and args.family is None:
        first = [family.model_types[0] for family in FAMILIES]
        asked = [sample for sample in asked if sample.name.removesuffix(" decoder") in first]
    rows = [_scheme_row(scheme, asked) for scheme in SCHEMES]
    if args.json:
        return json.dumps(rows, indent=2)
    return _table(rows, asked) if args.family is None else "\n\n".join(map(_in_full, rows))


def _scheme_row(scheme: type[Scheme], asked: list[Sample]) -> dict[str, Any]:
    return {
        "name": scheme.name,
        "class": scheme.__name__,
        "kind": scheme.kind,
        "source": scheme.source,
        "fine_tuning": scheme.fine_tuning,
        "fields": [_field_row(declared) for declared in fields(scheme)],
        "variants": variants(scheme, asked),
    }


def _field_row(declared: Field) -> dict[str, Any]:
    required = declared.default is MISSING
    row: dict[str, Any] = {"name": declared.name, "required": required, "accepts": describe(declared)}
    return row if required else {**row, "default": declared.default}


# All families, in columns


def _table(rows: list[dict[str, Any]], asked: list[Sample]) -> str:
    names = "".join(f"{sample.name.upper():{_width(sample)}}" for sample in asked)
    lines = [f"{'NAME':14}{'CLASS':18}{'SOURCE':14}{'KIND':8}{'CACHE':7}{'FLASH':7}{names}".rstrip()]
    for row in rows:
        head = f"{row['name']:14}{row['class']:18}{row['source']:14}"
        single = len(row["variants"]) == 1
        lines += [head + _cells(row["variants"][0], asked)] if single else [head.rstrip()]
        if not single:
            lines += [f"  {_values(found):44}{_cells(found, asked)}" for found in row["variants"]]
        lines += [f"  needs fine-tuning: {row['fine_tuning']}", *_field_lines(row["fields"])]
    return "\n".join([*lines, "", LEGEND])


def _width(sample: Sample) -> int:
    return max(7, len(sample.name) + 2)


def _cells(found: dict[str, Any], asked: list[Sample]) -> str:
    """Kind, cache, flash and the models."""
    does = [found["kind"], _yes(found["cache"]["works"]), _yes(found["flash_attention"])]
    on = [f"{_word(found['models'][sample.name], found):{_width(sample)}}" for sample in asked]
    return f"{does[0]:8}{does[1]:7}{does[2]:7}{''.join(on)}".rstrip()


def _word(on: dict[str, Any], found: dict[str, Any]) -> str:
    if on["native"]:
        return "plain*" if found["stock_differs"] else "plain"
    return _yes(on["works"])


def _yes(works: bool) -> str:
    return "yes" if works else "no"


def _values(found: dict[str, Any]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in found["fields"].items())


def _field_lines(rows: list[dict[str, Any]]) -> list[str]:
    return [f"  {_option(field):36}{_default(field):14}{field['accepts']}" for field in rows]


def _option(field: dict[str, Any]) -> str:
    return "--" + field["name"].replace("_", "-")


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    return "required" if field["required"] else str(default).lower() if default in (None, True, False) else str(default)


# One family, in words


def _in_full(row: dict[str, Any]) -> str:
    lines = [f"{row['name']} ({row['class']}, {row['source']})", f"  needs fine-tuning: {row['fine_tuning']}"]
    lines += _field_lines(row["fields"])
    for found in row["variants"]:
        lines += _wrapped(f"{_values(found)}: {_how(found)}" if found["fields"] else _how(found), 2)
        for on, names in _alike(found):
            lines += _wrapped(f"{', '.join(names)}: {_what(on, found)}", 4)
    return "\n".join(lines)


def _how(found: dict[str, Any]) -> str:
    """Kind, cache and attention."""
    cache = "cache works" if found["cache"]["works"] else f"cache refused: {found['cache']['reason']}"
    runs_on = "all backends of the stock model, flash attention too"
    if found["backends"] is not None:
        flash = "" if found["flash_attention"] else "; flash attention refused"
        runs_on = f"{', '.join(found['backends'])}{flash}"
    return f"{found['kind']} encoding; runs on {runs_on}; {cache}"


def _alike(found: dict[str, Any]) -> list[tuple[dict[str, Any], list[str]]]:
    """Models of which the same is to be said, together."""
    groups: list[tuple[dict[str, Any], list[str]]] = []
    for name, on in found["models"].items():
        same = next((names for other, names in groups if other == on), None)
        if same is None:
            groups.append((on, [name]))
        else:
            same.append(name)
    return groups


def _what(on: dict[str, Any], found: dict[str, Any]) -> str:
    if not on["works"]:
        return f"refused: {on['reason']}"
    if not on["native"]:
        return "works; needs hf_posswap to load"
    differs = f", but {found['stock_differs']}" if found["stock_differs"] else ""
    return f"works; saved as a checkpoint that transformers runs by itself{differs}"


def _wrapped(text: str, indent: int) -> list[str]:
    return wrapped(text, " " * indent, " " * (indent + 2))
