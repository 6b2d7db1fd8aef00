"""Every field of every registered scheme: what it takes, what it refuses and in which words."""

import dataclasses
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hf_posswap import SchemeError
from hf_posswap.schemes import BY_NAME, SCHEMES, Learned, LinearRoPE, NoPE, NTKRoPE, RoPE, Scheme, T5Bias
from hf_posswap.schemes.base import scheme_from_dict

Case = tuple[type[Scheme], dataclasses.Field]

FIELDS: list[Case] = [(scheme, declared) for scheme in SCHEMES for declared in dataclasses.fields(scheme)]
NUMBERS = [case for case in FIELDS if case[1].metadata["kind"] in (int, float)]
INTEGERS = [case for case in FIELDS if case[1].metadata["kind"] is int]
FLAGS_AND_CHOICES = [case for case in FIELDS if case[1].metadata["kind"] in (bool, str)]
SERIES = [case for case in FIELDS if case[1].metadata["kind"] is tuple]
COMPOSED = [case for case in FIELDS if case[1].metadata["kind"] in ("text", "scheme", "schemes")]

NO_NUMBERS: list[Any] = ["4", b"4", [4], (4,), {}, 4j, object(), True, False, math.nan, math.inf]
NO_NUMBERS += [-math.inf, 10**400, -(10**400), np.float32("nan"), np.array([4.0]), np.array([4.0, 5.0])]


def named(case: Any) -> str | None:
    return f"{case[0].name}-{case[1].name}" if isinstance(case, tuple) else None


def required(scheme: type[Scheme]) -> dict[str, Any]:
    return {f.name: some_value(f.metadata) for f in dataclasses.fields(scheme) if f.default is dataclasses.MISSING}


def some_value(rules: Any) -> Any:
    if rules["kind"] in ("scheme", "schemes"):
        return RoPE() if rules["kind"] == "scheme" else (RoPE(), NoPE())
    some = max(rules["low"], min(4, rules["high"]))
    return (some, some) if rules["kind"] is tuple else some


def make(case: Case, value: Any) -> Scheme:
    scheme, declared = case
    return scheme(**{**required(scheme), declared.name: value})


def refusal(case: Case, value: Any) -> str:
    with pytest.raises(SchemeError) as error:
        make(case, value)
    assert f"{case[0].name}: {case[1].name}=" in str(error.value)
    return str(error.value)


def takes(case: Case, value: Any) -> bool:
    try:
        make(case, value)
    except SchemeError:
        return False
    return True


@pytest.mark.parametrize("case", NUMBERS, ids=named)
def test_a_number_refuses_what_is_none(case: Case) -> None:
    assert [value for value in NO_NUMBERS if takes(case, value)] == []


@pytest.mark.parametrize("value", [np.bool_(True), bytearray(b"4")], ids=repr)
def test_what_float_would_convert_is_no_number_all_the_same(value: Any) -> None:
    assert [named(case) for case in NUMBERS if takes(case, value)] == []


@pytest.mark.parametrize("case", NUMBERS, ids=named)
def test_a_refusal_names_field_type_and_range(case: Case) -> None:
    rules = case[1].metadata
    for value in ("4", True, math.nan, -math.inf, 10**400):
        message = refusal(case, value)
        assert f"from {rules['low']:.15g} to {rules['high']:.15g}" in message or rules["high"] >= 1e15
        assert ("an integer" if rules["kind"] is int else "a finite number") in message
        assert ("None" in message) == rules["optional"]


@pytest.mark.parametrize("case", NUMBERS, ids=named)
def test_a_number_refuses_what_is_just_out_of_range(case: Case) -> None:
    low, high = case[1].metadata["low"], case[1].metadata["high"]
    whole = case[1].metadata["kind"] is int
    beyond = (low - 1, high + 1) if whole else (math.nextafter(low, -math.inf), math.nextafter(high, math.inf))
    for value in (*beyond, -(2 + abs(low)), 2 * high + 1):
        refusal(case, value)


# YaRN's two betas and Llama 3's two factors are ordered as well, which their own tests hold.
ORDERED = ("beta_fast", "beta_slow", "high_freq_factor", "low_freq_factor")


@pytest.mark.parametrize("case", [case for case in NUMBERS if case[1].name not in ORDERED], ids=named)
def test_a_number_takes_both_ends_of_its_range(case: Case) -> None:
    for value in (case[1].metadata["low"], case[1].metadata["high"]):
        assert getattr(make(case, value), case[1].name) == value


@pytest.mark.parametrize("case", INTEGERS, ids=named)
def test_an_integer_refuses_fractions(case: Case) -> None:
    for value in (4.5, Fraction(9, 2), np.float64(4.5)):
        refusal(case, value)


def test_integers_beyond_the_digits_of_a_float_are_kept() -> None:
    assert Learned(seed=2**53 + 1).seed == 2**53 + 1
    assert Learned(seed=np.int64(2**63 - 1)).seed == 2**63 - 1


@pytest.mark.parametrize("case", FLAGS_AND_CHOICES, ids=named)
def test_flags_and_choices_refuse_the_rest_and_list_what_there_is(case: Case) -> None:
    for value in (0, 1, None, "yes", "INTERLEAVED", b"zeros", 1.0, ["zeros"], math.nan):
        message = refusal(case, value)
        assert all(option in message for option in case[1].metadata.get("options", ("true", "false")))


@pytest.mark.parametrize("case", FIELDS, ids=named)
def test_none_is_taken_by_optional_fields_alone(case: Case) -> None:
    if case[1].metadata["optional"]:
        assert getattr(make(case, None), case[1].name) is None
    else:
        refusal(case, None)


@pytest.mark.parametrize("case", NUMBERS, ids=named)
def test_python_and_numpy_numbers_become_plain_ones(case: Case) -> None:
    whole = 2 if case[1].name in ORDERED else int(min(16, case[1].metadata["high"]))
    for kind in (int, float, Fraction, np.int32, np.int64, np.float32, np.float64, np.uint8):
        value = getattr(make(case, kind(whole)), case[1].name)
        assert value == whole
        assert type(value) is case[1].metadata["kind"]


@pytest.mark.parametrize("case", SERIES, ids=named)
def test_a_series_takes_lists_of_any_real_numbers_and_keeps_plain_floats(case: Case) -> None:
    low, high = case[1].metadata["low"], case[1].metadata["high"]
    for value in (
        [low, 2, high],
        (low, Fraction(2), np.float64(high)),
        [np.float64(low), np.int32(2), np.float64(high)],
    ):
        kept = getattr(make(case, value), case[1].name)
        assert kept == (low, 2.0, high)
        assert type(kept) is tuple
        assert [type(number) for number in kept] == [float] * 3


@pytest.mark.parametrize("case", SERIES, ids=named)
def test_a_series_refuses_what_is_no_list_or_holds_what_is_no_number(case: Case) -> None:
    low, high = case[1].metadata["low"], case[1].metadata["high"]
    beyond = (math.nextafter(low, -math.inf), math.nextafter(high, math.inf), 0.0, -2.0)
    lists = [[2.0, bad] for bad in (*NO_NUMBERS, None, *beyond)]
    for value in (*lists, [], (), "22", b"22", 2.0, {2.0}, {2.0: 2.0}, np.array([2.0, 2.0]), range(3), iter([2.0])):
        message = refusal(case, value)
        assert f"a list of numbers from {low:g} to {int(high)}" in message
        assert ("or None for the default" in message) == case[1].metadata["optional"]


@pytest.mark.parametrize("case", COMPOSED, ids=named)
def test_a_composition_refuses_what_is_no_part_of_it(case: Case) -> None:
    wrong = {
        "text": ["", 3, ["R"], b"RRRN"],
        "scheme": [3, [], "ropee", {}],
        "schemes": [(), 3, ["ropee", "nope"], [3, 4]],
    }
    for value in wrong[case[1].metadata["kind"]]:
        assert not takes(case, value)


def values_of(declared: dataclasses.Field) -> st.SearchStrategy[Any]:
    rules = declared.metadata
    if rules["kind"] == "text":
        return st.sampled_from(["RRRN", "NR", "ab"])
    if rules["kind"] in ("scheme", "schemes"):
        one = st.sampled_from([RoPE(), NoPE(), T5Bias(num_buckets=16), LinearRoPE(factor=2.5, rope_theta=5e5)])
        return one if rules["kind"] == "scheme" else st.tuples(one, one)
    if rules["kind"] is tuple:
        numbers = st.lists(st.floats(rules["low"], rules["high"]), min_size=1, max_size=8).map(tuple)
        return st.none() | numbers if rules["optional"] else numbers
    if rules["kind"] is bool:
        return st.booleans()
    if rules["kind"] is str:
        return st.sampled_from(rules["options"])
    inside = (st.integers if rules["kind"] is int else st.floats)(rules["low"], rules["high"])
    return st.none() | inside if rules["optional"] else inside


def plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    return value.to_dict() if isinstance(value, Scheme) else value


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@given(data=st.data())
@settings(deadline=None, max_examples=30, derandomize=True)
def test_a_scheme_survives_its_dictionary_and_json(scheme: type[Scheme], data: st.DataObject) -> None:
    values = {f.name: data.draw(values_of(f), label=f.name) for f in dataclasses.fields(scheme)}
    assume(values.get("beta_slow", 1) < values.get("beta_fast", 2))
    assume(values.get("low_freq_factor", 1) < values.get("high_freq_factor", 2))
    made = scheme(**values)
    block = json.loads(json.dumps(made.to_dict()))
    again = scheme_from_dict(block, BY_NAME)
    assert block == {"name": scheme.name, **{name: plain(value) for name, value in values.items()}}
    assert again == made
    assert type(again) is scheme
    assert hash(again) == hash(made)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_schemes_are_frozen_and_know_their_fields(scheme: type[Scheme]) -> None:
    made = scheme(**required(scheme))
    for name in [f.name for f in dataclasses.fields(scheme)] or ["anything"]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, name, 5)
    with pytest.raises(SchemeError, match="no field 'no_such_field'; its fields are: "):
        scheme(**required(scheme), no_such_field=1)


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if "positional" not in vars(s)], ids=lambda scheme: scheme.name)
def test_all_but_compositions_take_keywords_alone(scheme: type[Scheme]) -> None:
    with pytest.raises(SchemeError, match="takes its fields by name"):
        scheme(4)  # type: ignore[call-arg]


def test_equality_is_of_class_and_values() -> None:
    assert RoPE(rope_theta=500_000) == RoPE(rope_theta=np.float64(5e5))
    assert len({RoPE(rope_theta=500_000), RoPE(rope_theta=5e5), RoPE(rope_theta=5e6)}) == 2
    assert LinearRoPE(factor=4) != NTKRoPE(factor=4)
    assert T5Bias(num_buckets=16) != T5Bias(num_buckets=18)
