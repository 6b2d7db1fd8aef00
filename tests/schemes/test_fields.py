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
from hf_posswap.schemes import BY_NAME, SCHEMES, Learned, LinearRoPE, NTKRoPE, RoPE, Scheme, T5Bias
from hf_posswap.schemes.base import scheme_from_dict

Case = tuple[type[Scheme], dataclasses.Field]

FIELDS: list[Case] = [(scheme, declared) for scheme in SCHEMES for declared in dataclasses.fields(scheme)]
NUMBERS = [case for case in FIELDS if case[1].metadata["kind"] in (int, float)]
INTEGERS = [case for case in FIELDS if case[1].metadata["kind"] is int]
FLAGS_AND_CHOICES = [case for case in FIELDS if case[1].metadata["kind"] in (bool, str)]

NO_NUMBERS: list[Any] = ["4", b"4", [4], (4,), {}, 4j, object(), True, False, math.nan, math.inf]
NO_NUMBERS += [-math.inf, 10**400, -(10**400), np.float32("nan"), np.array([4.0]), np.array([4.0, 5.0])]


def named(case: Any) -> str | None:
    return f"{case[0].name}-{case[1].name}" if isinstance(case, tuple) else None


def required(scheme: type[Scheme]) -> dict[str, Any]:
    declared = [f for f in dataclasses.fields(scheme) if f.default is dataclasses.MISSING]
    return {f.name: max(f.metadata["low"], min(4, f.metadata["high"])) for f in declared}


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


# YaRN's two betas are ordered as well, which its own test holds.
@pytest.mark.parametrize("case", [case for case in NUMBERS if "beta" not in case[1].name], ids=named)
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
    for kind in (int, float, Fraction, np.int32, np.int64, np.float32, np.float64, np.uint8):
        value = getattr(make(case, kind(16)), case[1].name)
        assert value == 16
        assert type(value) is case[1].metadata["kind"]


def values_of(declared: dataclasses.Field) -> st.SearchStrategy[Any]:
    rules = declared.metadata
    if rules["kind"] is bool:
        return st.booleans()
    if rules["kind"] is str:
        return st.sampled_from(rules["options"])
    inside = (st.integers if rules["kind"] is int else st.floats)(rules["low"], rules["high"])
    return st.none() | inside if rules["optional"] else inside


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@given(data=st.data())
@settings(deadline=None, max_examples=30, derandomize=True)
def test_a_scheme_survives_its_dictionary_and_json(scheme: type[Scheme], data: st.DataObject) -> None:
    values = {f.name: data.draw(values_of(f), label=f.name) for f in dataclasses.fields(scheme)}
    assume(values.get("beta_slow", 1) < values.get("beta_fast", 2))
    made = scheme(**values)
    block = json.loads(json.dumps(made.to_dict()))
    again = scheme_from_dict(block, BY_NAME)
    assert block == {"name": scheme.name, **values}
    assert again == made
    assert type(again) is scheme
    assert hash(again) == hash(made)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_schemes_are_frozen_and_take_keywords_alone(scheme: type[Scheme]) -> None:
    made = scheme(**required(scheme))
    for name in [f.name for f in dataclasses.fields(scheme)] or ["anything"]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, name, 5)
    with pytest.raises(SchemeError, match="takes its fields by name"):
        scheme(4)  # type: ignore[call-arg]
    with pytest.raises(SchemeError, match="no field 'no_such_field'; its fields are: "):
        scheme(**required(scheme), no_such_field=1)


def test_equality_is_of_class_and_values() -> None:
    assert RoPE(rope_theta=500_000) == RoPE(rope_theta=np.float64(5e5))
    assert len({RoPE(rope_theta=500_000), RoPE(rope_theta=5e5), RoPE(rope_theta=5e6)}) == 2
    assert LinearRoPE(factor=4) != NTKRoPE(factor=4)
    assert T5Bias(num_buckets=16) != T5Bias(num_buckets=18)
