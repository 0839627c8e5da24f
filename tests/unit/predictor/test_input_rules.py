"""What becomes of values that a version was not made for, against what is said of one element at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, WeirError
from services.predictor.rules import CLIPPED, DEFAULT, MISSING, Rules
from services.predictor.tensors import DTYPES

NAN, INF = math.nan, math.inf


def rules(*declared: pb.ValueRule, datatype: str = "FP32", shape: tuple[int, ...] = (-1, 3), rows: int = 8) -> Rules:
    tensor = pb.TensorSpec(name="x", datatype=datatype, shape=shape, rules=declared)
    return Rules(pb.PredictionSpec(inputs=[tensor], max_rows=rows))


def refused(found: Rules, x: np.ndarray[Any, Any], *, replace: bool = True) -> WeirError:
    with pytest.raises(WeirError) as caught:
        found.apply({"x": x}, replace=replace)
    assert caught.value.reason is Reason.INVALID_REQUEST
    return caught.value


AGE = pb.ValueRule(columns=[1], min=0, max=120, beyond="reject", nan="reject")


@pytest.mark.parametrize(
    ("rule", "value", "limit"),
    [
        (AGE, 121, "it must be between 0 and 120"),
        (AGE, INF, "it must be between 0 and 120"),
        (AGE, NAN, "NaN is not accepted"),
        (pb.ValueRule(columns=[0, 1], min=-1.5, beyond="reject"), -2, "it must be at least -1.5"),
        (pb.ValueRule(columns=[1, 0], max=7, beyond="reject"), 8, "it must be at most 7"),
        (pb.ValueRule(columns=[1], categories=["1", "2"], unseen="reject"), 3, "it is no category that the model was"),
    ],
)
def test_what_is_rejected_is_named_by_its_place_and_limit_alone(rule: pb.ValueRule, value: float, limit: str) -> None:
    x = np.array([[1, 1, 999], [1, 2, 999], [1, value, 999]], np.float32)
    error = refused(rules(rule), x)
    assert error.limit == "x[2,1]"
    assert str(error).startswith(f"input 'x': row 2, column 1: {limit}")
    assert f"{value:g}" not in str(error).replace(limit, "")


def test_each_column_is_held_against_its_own_limit() -> None:
    found = rules(
        pb.ValueRule(columns=[2], max=1, beyond="reject"), pb.ValueRule(columns=[0], min=5, max=9, beyond="reject")
    )
    assert "row 0, column 0: it must be between 5 and 9" in str(refused(found, np.array([[4, 0, 0]], np.float32)))
    assert "row 0, column 2: it must be at most 1" in str(refused(found, np.array([[5, 0, 2]], np.float32)))


@pytest.mark.parametrize(
    ("shape", "rows", "place"),
    [((-1,), 8, "row 1: "), ((-1, 2, 2), 8, "row 0, element [0, 1]: "), ((2, 2), 0, "element [0, 1]: ")],
)
def test_tensors_of_all_shapes_say_where(shape: tuple[int, ...], rows: int, place: str) -> None:
    x = np.arange(4, dtype=np.float32).reshape((2, 2) if rows == 0 else (-1, *shape[1:]))
    x.flat[1] = NAN
    assert place in str(refused(rules(pb.ValueRule(nan="reject"), shape=shape, rows=rows), x))


def test_what_is_put_in_place_is_flagged_and_what_was_sent_stays() -> None:
    found = rules(
        pb.ValueRule(columns=[0], nan="default", default_value=-1, min=0, max=10, beyond="clip"),
        pb.ValueRule(columns=[1], nan="default", default_value=7),
        pb.ValueRule(columns=[2], categories=["0", "1"], unseen="missing"),
    )
    sent = np.array([[NAN, NAN, 1], [-INF, 3, NAN], [11, INF, 2]], np.float32)
    sent.flags.writeable = False  # as those are that share a message's bytes
    made, flags = found.apply({"x": sent, "other": sent}, replace=True)
    np.testing.assert_array_equal(made["x"], np.array([[-1, 7, 1], [0, 3, NAN], [10, INF, NAN]], np.float32))
    assert (made["x"].dtype, made["x"].flags.c_contiguous) == (sent.dtype, True)
    assert made["other"] is sent
    assert flags == (DEFAULT, MISSING, CLIPPED)


def test_what_is_as_it_should_be_is_not_copied() -> None:
    found = rules(pb.ValueRule(nan="default", min=0, max=1, beyond="clip"))
    sent = {"x": np.array([[0, 0.5, 1]], np.float32)}
    made, flags = found.apply(sent, replace=True)
    assert made is sent
    assert flags == ()
    assert Rules(pb.PredictionSpec()).apply(sent, replace=True) == (sent, ())


@pytest.mark.parametrize(
    "rule",
    [
        pb.ValueRule(nan="default", default_value=3),
        pb.ValueRule(min=0, max=1, beyond="clip"),
        pb.ValueRule(categories=["1"], unseen="missing"),
    ],
)
def test_nothing_is_put_in_place_for_who_wants_his_own_answer(rule: pb.ValueRule) -> None:
    x = np.array([[1, 1, NAN if rule.nan else 5]], np.float32)
    error = refused(rules(rule), x, replace=False)
    assert error.limit == "x[0,2]"
    assert str(error).endswith("; nothing is put in its place where degradable is false")


def test_words_that_accept_and_no_words_leave_all_as_it_is() -> None:
    found = rules(
        pb.ValueRule(columns=[0], nan="accept", min=0, max=1, beyond="accept"),
        pb.ValueRule(columns=[1], categories=["1"], unseen="accept"),
        pb.ValueRule(columns=[2], categories=["1"]),
    )
    sent = {"x": np.array([[NAN, 2, 2], [7, 2, NAN]], np.float32)}
    assert found.apply(sent, replace=False) == (sent, ())


def test_texts_are_categories_and_the_missing_one_is_empty() -> None:
    sent = np.array([[b"red", b"blau"], ["grün".encode(), b"\xff"]], object)
    rule = pb.ValueRule(columns=[0], categories=["red", "grün"], unseen="reject")
    missing = pb.ValueRule(columns=[1], categories=["blau"], unseen="missing")
    made, flags = rules(rule, missing, datatype="BYTES", shape=(-1, 2)).apply({"x": sent}, replace=True)
    assert made["x"].tolist() == [[b"red", b"blau"], ["grün".encode(), b""]]
    assert flags == (MISSING,)
    sent[1, 0] = b"gr"
    assert "row 1, column 0" in str(refused(rules(rule, datatype="BYTES", shape=(-1, 2)), sent))


@pytest.mark.parametrize(("datatype", "value"), [("INT64", 2**62), ("UINT64", 2**63), ("INT8", 100), ("UINT8", 255)])
def test_whole_numbers_are_compared_exactly(datatype: str, value: int) -> None:
    found = rules(pb.ValueRule(max=value - 1 if value < 2**53 else value, beyond="clip"), datatype=datatype)
    most = value - 1 if value < 2**53 else value
    sent = np.array([[most, most - 1, min(most + 1, np.iinfo(DTYPES[datatype]).max)]], DTYPES[datatype])
    made, _ = found.apply({"x": sent}, replace=True)
    assert made["x"].tolist() == [[most, most - 1, most]]


def widened(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_bf16_is_a_number_too() -> None:
    found = rules(pb.ValueRule(nan="default", default_value=0.1, min=-2, max=3.14159, beyond="clip"), datatype="BF16")
    sent = (np.array([[NAN, 1.5, 400], [-3, -2, 3]], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    made, flags = found.apply({"x": sent}, replace=True)
    assert made["x"].dtype == np.uint16
    np.testing.assert_array_equal(
        widened(made["x"]), np.array([[0.10009765625, 1.5, 3.140625], [-2, -2, 3]], np.float32)
    )
    assert flags == (DEFAULT, CLIPPED)
    again, flags = found.apply(made, replace=True)
    assert again is made
    assert flags == ()


VALUES = st.sampled_from((NAN, INF, -INF, *map(float, range(-4, 5))))


def one_by_one(rule: pb.ValueRule, value: float) -> tuple[float, str]:
    """What the declaration says of one element: what the model gets, and the flag or "reject"."""
    if math.isnan(value):
        if rule.nan == "default":
            return rule.default_value, DEFAULT
        return value, "reject" if rule.nan == "reject" else ""
    if rule.categories and value not in map(float, rule.categories):
        return (NAN, MISSING) if rule.unseen == "missing" else (value, rule.unseen.replace("accept", ""))
    low = rule.min if rule.HasField("min") else -INF
    high = rule.max if rule.HasField("max") else INF
    if not low <= value <= high:
        if rule.beyond == "clip":
            return min(max(value, low), high), CLIPPED
        return value, rule.beyond.replace("accept", "")
    return value, ""


@st.composite
def declared(draw: st.DrawFn) -> list[pb.ValueRule]:
    found = []
    for column in draw(st.lists(st.integers(0, 2), unique=True, max_size=3)):
        rule = pb.ValueRule(columns=[column], nan=draw(st.sampled_from(("", "accept", "reject", "default"))))
        if rule.nan == "default":
            rule.default_value = 9
        if draw(st.booleans()):
            rule.categories.extend(draw(st.lists(st.sampled_from("0123"), min_size=1, unique=True)))
            rule.unseen = draw(st.sampled_from(("", "accept", "reject", "missing")))
        else:
            low, high = sorted(draw(st.tuples(st.integers(-3, 3), st.integers(-3, 3))))
            if draw(st.booleans()):
                rule.min = low
            rule.max = high
            rule.beyond = draw(st.sampled_from(("", "accept", "reject", "clip")))
        found.append(rule)
    return found


@given(
    declared(),
    st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=6),
    st.sampled_from(("FP32", "FP64", "FP16")),
)
def test_columns_are_treated_as_each_element_would_be(
    of_columns: list[pb.ValueRule], rows: list[tuple[float, ...]], datatype: str
) -> None:
    sent = np.array(rows, DTYPES[datatype])
    by_column = {rule.columns[0]: rule for rule in of_columns}
    told = [[one_by_one(by_column.get(at, pb.ValueRule()), value) for at, value in enumerate(row)] for row in rows]
    said = {flag for row in told for _, flag in row} - {""}
    found = rules(*of_columns, datatype=datatype)
    if "reject" in said:
        error = refused(found, sent)
        row, column = map(int, error.limit.removeprefix("x[").removesuffix("]").split(","))
        assert told[row][column][1] == "reject"
    else:
        made, flags = found.apply({"x": sent}, replace=True)
        np.testing.assert_array_equal(made["x"], np.array([[value for value, _ in row] for row in told], sent.dtype))
        assert set(flags) == said
    np.testing.assert_array_equal(sent, np.array(rows, DTYPES[datatype]))
