"""Results: frozen, self-describing, the same after a trip through JSON.

A result is a frozen dataclass of numbers, strings, tuples and further dataclasses; its class says its `kind`, by which
`read_result` finds the class again. Numbers that JSON has no words for are written as "inf", "-inf" and "nan".
"""

import json
import math
import os
import types
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from hf_posswap.errors import EvaluationError, FamilyError, SchemeError
from hf_posswap.evaluation.bare import bare
from hf_posswap.families import family_of
from hf_posswap.files import reason, write_whole
from hf_posswap.patching import scheme_of
from hf_posswap.schemes import Geometry

VERSION = 1
R = TypeVar("R", bound="Result")
M = TypeVar("M", bound="ModelResult")


@dataclass(frozen=True)
class Subject:
    """What was measured."""

    label: str
    """What tables and pictures call it: the scheme's name, until someone knows better."""
    model: str
    """Name or folder that the model was loaded from, else its class."""
    architecture: str
    scheme: dict[str, Any] | None
    """`Scheme.to_dict()`; None for a model whose scheme has no name here."""
    trained_length: int | None
    """Positions before any extension; None where it is not known."""
    head_dim: int | None
    """This and the next three are None where the family is not known."""
    heads: int | None
    """Of queries."""
    hidden_size: int | None
    layers: int | None
    parameters: int
    dtype: str
    attention: str | None
    """The attention implementation."""


@dataclass(frozen=True)
class Cost:
    """What a measurement took."""

    seconds: float
    """Of work, summed over processes and over the runs that an interrupted one was resumed in."""
    peak_memory: int | None
    """Bytes above what the process held before, of the process that needed most; on a GPU the allocator's. None where
    it cannot be told."""
    processes: int
    device: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """Base of all results. A class without a `kind` is a base of others."""

    kind: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type["Result"]]] = {}
    """Every class of results by its kind."""

    def __init_subclass__(cls) -> None:
        if cls.kind:
            Result.kinds[cls.kind] = cls

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, `kind` and `version` among them."""
        return {"kind": self.kind, "version": VERSION, **_plain(self)}

    def to_json(self) -> str:
        """JSON text; `from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_dict(cls: type[R], values: Any) -> R:
        """The inverse of `to_dict`.

        Raises:
            EvaluationError: these are not the fields of this kind of result.
        """
        if not isinstance(values, dict):
            raise EvaluationError(f"A saved result is an object with the fields of its kind, not {values!r:.60}.")
        kind, version = values.get("kind"), values.get("version")
        if kind != cls.kind or version != VERSION:
            raise EvaluationError(
                f"This is a result of kind {kind!r:.60} and version {version!r:.60}, not {cls.kind!r} and {VERSION}."
            )
        rest = {name: value for name, value in values.items() if name not in ("kind", "version")}
        return _typed(cls, rest, f"{cls.kind} result")

    @classmethod
    def from_json(cls: type[R], text: str) -> R:
        """The inverse of `to_json`.

        Raises:
            EvaluationError: the text is no such result.
        """
        return cls.from_dict(_parsed(text))


@dataclass(frozen=True, kw_only=True)
class ModelResult(Result):
    """Base of what was measured of a model."""

    subject: Subject
    cost: Cost

    def labelled(self: M, label: str) -> M:
        """The same under another name in tables and pictures."""
        return replace(self, subject=replace(self.subject, label=label))


def read_result(values: Any) -> Result:
    """The result of whatever kind that `to_dict` gave these values.

    Raises:
        EvaluationError: they are no result, or broken.
    """
    kind = values.get("kind") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in Result.kinds:
        raise EvaluationError(
            f"This is no saved result: its kind is {kind!r:.60}, and there are {', '.join(sorted(Result.kinds))}."
        )
    return Result.kinds[kind].from_dict(values)


def save_results(results: Sequence[Result], path: str | os.PathLike[str]) -> Path:
    """Writes results into one JSON file, whole or not at all, over what was there; `load_results` reads them.

    Raises:
        EvaluationError: it cannot be written; what was there is as it was.
    """
    text = json.dumps({"results": [result.to_dict() for result in results]}, indent=2, allow_nan=False)
    try:
        return write_whole(path, text.encode())
    except (OSError, ValueError) as error:
        raise EvaluationError(f"Results cannot be written to {path}: {reason(error)}.") from error


def load_results(path: str | os.PathLike[str]) -> list[Result]:
    """What `save_results` wrote, or the JSON of one result.

    Raises:
        EvaluationError: there is no such file, or it holds something else.
    """
    try:
        values = _parsed(Path(path).read_text(encoding="utf-8"))
        saved = values["results"] if isinstance(values, dict) and "results" in values else [values]
        if not isinstance(saved, list):
            raise EvaluationError(f"Its results are a list, not {saved!r:.60}.")
        return [read_result(each) for each in saved]
    except EvaluationError as error:
        raise EvaluationError(f"{path} holds no results: {error}") from error
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path} cannot be read: {reason(error)}.") from error


def subject_of(model: Any, label: str | None = None) -> Subject:
    """The facts of a model, patched or not, of a family that is known here or not."""
    config, inside = model.config, bare(model)
    scheme: dict[str, Any] | None = None
    geometry: Geometry | None = None
    with suppress(SchemeError, FamilyError):
        scheme = json.loads(json.dumps(scheme_of(inside).to_dict()))
    with suppress(FamilyError):
        geometry = family_of(config).geometry(config)
    return Subject(
        label=label or (scheme["name"] if scheme else type(inside).__name__),
        model=getattr(config, "_name_or_path", "") or type(inside).__name__,
        architecture=type(inside).__name__,
        scheme=scheme,
        trained_length=geometry.trained_length if geometry else getattr(config, "max_position_embeddings", None),
        head_dim=geometry.head_dim if geometry else None,
        heads=geometry.num_attention_heads if geometry else None,
        hidden_size=geometry.hidden_size if geometry else None,
        layers=geometry.num_hidden_layers if geometry else None,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=str(model.dtype).removeprefix("torch."),
        attention=getattr(config, "_attn_implementation", None),
    )


# JSON


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"This is no JSON: {error}.") from error


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _typed(wanted: Any, value: Any, where: str) -> Any:
    """`value` from JSON as what the annotation `wanted` says."""
    if wanted is Any:
        return value
    if is_dataclass(wanted):
        return _typed_fields(wanted, value, where)
    options, origin = get_args(wanted), get_origin(wanted)
    if origin in (Union, types.UnionType):
        return _typed_union(options, value, where)
    if origin is tuple and isinstance(value, list):
        each = options[:1] * len(value) if options[1:] == (Ellipsis,) else options
        if len(each) == len(value):
            return tuple(_typed(option, item, where) for option, item in zip(each, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return {key: _typed(options[1], item, where) for key, item in value.items()}
    if wanted is float and (type(value) is int or value in ("inf", "-inf", "nan")):
        with suppress(OverflowError):
            return float(value)
    if type(value) is not wanted:
        raise _damaged(value, where)
    return value


def _typed_fields(wanted: Any, value: Any, where: str) -> Any:
    names = {field.name for field in fields(wanted)}
    if not isinstance(value, dict) or set(value) != names:
        raise EvaluationError(f"A {where} has the fields {sorted(names)}, not {value!r:.200}.")
    hints = get_type_hints(wanted)
    return wanted(**{name: _typed(hints[name], value[name], f"{where}'s {name}") for name in names})


def _typed_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    for option in options:
        with suppress(EvaluationError):
            return _typed(option, value, where)
    raise _damaged(value, where)


def _damaged(value: Any, where: str) -> EvaluationError:
    return EvaluationError(f"A {where} is not {value!r:.60}: the file is damaged, or of another version.")
