"""Schemes and encodings: what a positional scheme is, and the modules it can become.

A *scheme* is a frozen dataclass: a name, fields and a formula. For one model it builds an *encoding*, an `nn.Module` of
one of four kinds, which differ in where position meets the network:

- input encoding:  `position_ids [B, Q] -> [B, Q, E]`, added to the token embeddings
- rotary encoding: `positions [B, L] -> cos, sin [B, L, D]`, rotates queries and keys
- bias encoding:   `query positions [B, Q], key positions [B, K] -> [B or 1, H, Q, K]`, added to attention scores
- score encoding:  `queries, keys and both positions -> scores [B, H, Q, K]`, replaces the dot product

Shapes: B batch, H query heads, G key/value heads, Q queries, K keys, D head dim, E hidden size, L length.
"""

from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.fields import checked, example_of

Kind = Literal["input", "rotary", "bias", "score"]
Pairing = Literal["half", "interleaved"]
Self = TypeVar("Self", bound="Scheme")


@dataclass(frozen=True)
class Geometry:
    """The facts that a scheme may know of a model. `trained_length` is the length before any extension."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_size: int
    num_hidden_layers: int
    trained_length: int
    causal: bool
    rope_theta: float | None = None
    initializer_range: float = 0.02
    pairing: Pairing = "half"
    """Which dimensions of a head turn together: i and i + W/2, or 2i and 2i + 1."""
    partial_rotary_factor: float = 1.0
    """The part of each head that the model itself rotates."""
    rotates_prefix: bool = False
    """True where attention rotates the first W dimensions of a head, W being the width of cos and sin; elsewhere W is
    always `head_dim`."""


class _Checked(ABCMeta):
    """Calling a scheme class with wrong fields is an error of ours, which says what there is."""

    def __call__(cls, *args: Any, **values: Any) -> Any:
        values = {**cls.positional(args), **values} if args else values  # type: ignore[attr-defined]
        _refuse_fields(cls, values)
        return super().__call__(**values)


@dataclass(frozen=True, kw_only=True)
class Scheme(metaclass=_Checked):
    """A positional scheme: parameters and formula, independent of any model.

    A subclass sets the class attributes, declares its fields with `schemes.fields` and implements `build`.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    source: ClassVar[str]
    causal_only: ClassVar[str | None] = None
    """Why the scheme is refused on an encoder; None when it is not."""
    has_order: ClassVar[bool] = True
    """False for a scheme under which an encoder is a bag of words."""
    relative: ClassVar[bool] = False
    """True when scores depend on positions by their differences alone, so that moving all of them changes nothing."""
    refuses_cache: ClassVar[str | None] = None
    """Why a cache of keys cannot be right under this scheme; None when it can."""
    stock_differs: ClassVar[str | None] = None
    """What transformers does otherwise with a plain checkpoint of this scheme; None when nothing."""
    fine_tuning: ClassVar[str] = "yes, unless the model was trained with it"
    """Whether a model that is patched with this scheme needs fine-tuning."""

    # An instance may say otherwise than its class, where a field decides: see `_say`.

    def _say(self, **attributes: Any) -> None:
        """Sets `kind` and the like on this instance; they are no fields, so equality and saving do not see them."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __post_init__(self) -> None:
        checked(self)

    @classmethod
    def positional(cls, values: Sequence[Any]) -> dict[str, Any]:
        """The fields that unnamed arguments are: none here, whatever their order, it would be guesswork."""
        raise SchemeError(f"{cls.__name__} takes its fields by name; they are: {_names(cls) or 'none'}.")

    @abstractmethod
    def build(self, geometry: Geometry) -> nn.Module | None:
        """The encoding for one model, or None where nothing is added to it."""

    def encodings(self, geometry: Geometry) -> "Encodings":
        """What `build` gives, at its place. Compositions, which have encodings at several places, build these."""
        place = "scores" if self.kind in ("bias", "score") else self.kind
        return Encodings(**{place: self.build(geometry)})

    def resolve(self: Self, geometry: Geometry) -> Self:
        """This scheme with fields left None filled in from the model.

        Raises:
            SchemeError: the scheme has no meaning for this geometry.
        """
        return self

    def max_length(self, geometry: Geometry) -> int | None:
        """The length that a resolved scheme makes of the trained one; None when it does not change it."""
        return None

    def stock_length(self) -> int | None:
        """What transformers must find as the config's length to compute this scheme; None when it does not look."""
        return None

    def limit(self) -> int | None:
        """The position at which the scheme ends (a table's length); None when it has no end."""
        return None

    def rope_parameters(self, geometry: Geometry) -> dict[str, Any] | None:
        """The same function in transformers' `config.rope_parameters`; None when it cannot be said there."""
        return None

    def with_defaults(self: Self, **defaults: Any) -> Self:
        """A copy in which the fields that are None take the given values."""
        return replace(self, **{k: v for k, v in defaults.items() if getattr(self, k) is None})

    def to_dict(self) -> dict[str, Any]:
        """`{"name": ..., fields}`: plain JSON values."""
        return {"name": self.name, **asdict(self)}


class Encoding(nn.Module):
    """A module whose constants keep float64 through `.to(bfloat16)`, meta loading, deepcopy and pickling.

    Constants are plain attributes rather than buffers, so that casting the model does not degrade them. `anchor` is an
    empty, unsaved buffer: it is cast and moved with the model and so tells which dtype and device the model has.
    """

    anchor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("anchor", torch.empty(0), persistent=False)


@dataclass(frozen=True)
class Encodings:
    """What a scheme builds for one model: at most one encoding for each place where position meets the network."""

    input: nn.Module | None = None
    rotary: nn.Module | None = None
    scores: nn.Module | None = None
    """A bias or score encoding."""


class InputEncoding(Encoding):
    """`forward(position_ids [B, Q]) -> [B, Q, E]` in the model's dtype."""


class RotaryEncoding(Encoding):
    """`positions [B, L] -> cos, sin [B, L, W]`, pair i being columns i and i + W/2 of the tables.

    Angles are `position * inv_freq` in float64; cos and sin are rounded once, to the dtype that is asked for. `still`
    pairs after those of `inv_freq [N]` do not turn; W = 2 (N + still).
    """

    def __init__(self, inv_freq: Tensor, attention_scaling: float, still: int = 0) -> None:
        super().__init__()
        self.inv_freq = inv_freq
        self.attention_scaling = attention_scaling
        self.still = still

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        """The signature of transformers' rotary modules: `x` gives dtype and device."""
        return self.rotation(position_ids, x.dtype)

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin `[B, L, W]` for `positions [B, L]`, each times `attention_scaling` where it turns."""
        cos, sin = cos_and_sin(positions, *self.frequencies(positions), self.still)
        cos, sin = (x.to(device=positions.device, dtype=dtype) for x in (cos, sin))
        return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)

    def frequencies(self, positions: Tensor) -> tuple[Tensor, float | Tensor]:
        """inv_freq and the factor on cos and sin, as `cos_and_sin` takes them."""
        return self.inv_freq, self.attention_scaling


class NoRotation(Encoding):
    """The identity in a rotary slot: cos 1 and sin 0, `[1, L, D]`."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        shape = (1, position_ids.shape[-1], self.head_dim)
        return x.new_ones(1, 1, 1).expand(shape), x.new_zeros(1, 1, 1).expand(shape)


class NoInput(Encoding):
    """Nothing in an input slot: a zero without dimensions, which is added without changing the dtype."""

    def forward(self, position_ids: Tensor) -> Tensor:
        return torch.zeros((), device=position_ids.device)


class PositionPairEncoding(Encoding, ABC):
    """What bias and score encodings share: attention asks for them per block of queries.

    Whatever of the positions does not depend on the layer is computed once per forward pass by `tables`.
    """

    @property
    def exact_dtype(self) -> torch.dtype:
        """float32, whatever the model's dtype; float64 for float64 models."""
        return torch.float64 if self.anchor.dtype == torch.float64 else torch.float32

    def tables(self, positions: Tensor) -> tuple[Tensor, ...]:
        """What a block needs to know of `positions [B, L]`: a tuple of `[B, L, ...]`, first the positions."""
        return (positions,)


class BiasEncoding(PositionPairEncoding):
    """An additive bias on attention scores, in `exact_dtype`."""

    @abstractmethod
    def forward(self, query_tables: tuple[Tensor, ...], key_tables: tuple[Tensor, ...]) -> Tensor:
        """Tables for `[B, Q]` and `[B, K]` positions to a bias `[B, H, Q, K]`."""


class DistanceBias(BiasEncoding):
    """A bias that depends on `query position - key position` and on the head alone.

    A subclass implements `bias`, a pointwise function, so that attention is free to tabulate it over distances or to
    fuse it into a kernel.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    @abstractmethod
    def bias(self, distances: Tensor, heads: Tensor) -> Tensor:
        """The bias for `distances` (signed, positive when the key comes first) and `heads`, broadcast together."""

    def forward(self, query_tables: tuple[Tensor, ...], key_tables: tuple[Tensor, ...]) -> Tensor:
        distances = query_tables[0][:, None, :, None] - key_tables[0][:, None, None, :]
        heads = torch.arange(self.num_heads, device=distances.device).view(1, -1, 1, 1)
        return self.bias(distances, heads)


class NoBias(BiasEncoding):
    """Nothing: for layers whose attention is ours although they have no bias."""

    def forward(self, query_tables: tuple[Tensor, ...], key_tables: tuple[Tensor, ...]) -> Tensor:
        return torch.zeros((), dtype=self.exact_dtype, device=query_tables[0].device)


class ScoreEncoding(PositionPairEncoding):
    """Scores from content and both positions, over keys that are cached as the projections gave them."""

    @abstractmethod
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        query_tables: tuple[Tensor, ...],
        key_tables: tuple[Tensor, ...],
        own: Tensor,
    ) -> Tensor:
        """`query [B, H, Q, D]`, `key [B, H, K, D]` and their tables to unscaled scores `[B, H, Q, K]`.

        `own [Q]` tells which key is that of the query's own token; keys after it are hidden by the mask.
        """


def cos_and_sin(
    positions: Tensor, inv_freq: Tensor, scaling: float | Tensor = 1.0, still: int = 0
) -> tuple[Tensor, Tensor]:
    """cos and sin `[B, L, N + still]` in float64, times `scaling` but for the `still` pairs, which are 1 and 0.

    `inv_freq` is `[N]`, or `[B, L, N]` with `scaling [B, L, 1]` where every position has frequencies of its own.
    """
    angles = float64_angles(positions, inv_freq)
    scaling = scaling.to(angles.device) if isinstance(scaling, Tensor) else scaling
    return pad(angles.cos() * scaling, (0, still), value=1.0), pad(angles.sin() * scaling, (0, still))


def rotated(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing) -> Tensor:
    """`x [B, H, L, D]`, its first W dimensions turned in pairs by the angles of `cos, sin [B, L, W/2]`."""
    cos, sin = (table.unsqueeze(1).to(x.dtype) for table in (cos, sin))
    width = 2 * cos.shape[-1]
    turning, rest = x[..., :width], x[..., width:]
    if pairing == "half":
        first, second = turning.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
    first, second = turning[..., 0::2], turning[..., 1::2]
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((turned.flatten(-2), rest), dim=-1)


def float64_angles(positions: Tensor, inv_freq: Tensor) -> Tensor:
    """`positions [B, L]` times `inv_freq`, `[N]` or `[B, L, N]`, in float64: `[B, L, N]`, on the CPU where the device
    has no float64."""
    if positions.device.type == "mps":
        positions = positions.cpu()
    return positions[..., None].to(torch.float64) * inv_freq.to(positions.device)


def scheme_from_dict(block: Any, known: Mapping[str, type[Scheme]]) -> Scheme:
    """The scheme that `to_dict` wrote.

    Raises:
        SchemeError: not such a mapping, or an unknown name, field or value.
    """
    if not isinstance(block, Mapping) or not isinstance(block.get("name"), str):
        raise SchemeError(f"A saved scheme is a mapping with a 'name', not {block!r:.80}.")
    values = {k: v for k, v in block.items() if k != "name"}
    return make_scheme(block["name"], values, known)


def make_scheme(name: str, values: Mapping[str, Any], known: Mapping[str, type[Scheme]]) -> Scheme:
    """A scheme by name and fields.

    Raises:
        SchemeError: unknown name or field, a field missing or out of range; the message lists what there is.
    """
    if name not in known:
        raise SchemeError(f"There is no scheme {name!r}; there are {', '.join(known)}.")
    return known[name](**values)


def _refuse_fields(scheme: Any, values: Mapping[str, Any]) -> None:
    name, declared = scheme.name, fields(scheme)
    unknown = [key for key in values if key not in {f.name for f in declared}]
    if unknown:
        there_are = _names(scheme) or "none"
        raise SchemeError(f"{name} has no field {', '.join(map(repr, unknown))}; its fields are: {there_are}.")
    missing = [f.name for f in declared if _is_required(f) and f.name not in values]
    if missing:
        example = example_of(next(f for f in declared if f.name == missing[0]))
        raise SchemeError(f"{name} needs {', '.join(missing)}, for example {name} with {missing[0]}={example}.")


def _names(scheme: Any) -> str:
    return ", ".join(f.name for f in fields(scheme))


def _is_required(declared: Field) -> bool:
    return declared.default is MISSING and declared.default_factory is MISSING
