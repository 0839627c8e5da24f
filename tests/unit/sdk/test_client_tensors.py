"""Arrays and lists as the client sends and reads them, against the server's own reading of the same messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from inference import open_inference_pb2 as pb
from weir.client._tensors import Column, Declared, inputs_of, lists_of, outputs_of

from libs.errors import WeirError
from services.predictor import tensors
from services.predictor.port import Signature, Tensor

NAMES = sorted(set(tensors.DTYPES) - {"BF16", "BYTES"})


def through(value: Any, datatype: str, shape: tuple[int, ...]) -> np.ndarray:
    """As the server decodes what the client sends."""
    request = pb.ModelInferRequest()
    inputs_of({"x": value}, [Declared("x", datatype, shape)], request)
    declared = Tensor("x", datatype, shape)
    return tensors.decode(request, Signature((declared,), (declared,), 64))["x"]


def back(array: np.ndarray, datatype: str, shape: tuple[int, ...]) -> np.ndarray:
    """As the client reads what the server encodes."""
    response = pb.ModelInferResponse()
    tensors.encode({"x": array}, (Tensor("x", datatype, shape),), response)
    return outputs_of(response)["x"]


@given(st.data(), st.sampled_from(NAMES))
def test_numbers_survive_both_ways(data: st.DataObject, datatype: str) -> None:
    array = data.draw(arrays.arrays(tensors.DTYPES[datatype], (3, 2)))
    got = back(through(array, datatype, (-1, 2)), datatype, (-1, 2))
    assert got.dtype == array.dtype
    assert np.array_equal(got, array, equal_nan=array.dtype.kind == "f")
    if datatype not in ("FP16", "FP32"):  # a Python float is an FP64: smaller ones are exact only downwards
        assert np.array_equal(through(array.tolist(), datatype, (-1, 2)), array, equal_nan=array.dtype.kind == "f")


@given(st.lists(st.text(max_size=5) | st.binary(max_size=5), min_size=1, max_size=4))
def test_bytes_survive_both_ways(elements: list[str | bytes]) -> None:
    sent = through(elements, "BYTES", (-1,))
    assert sent.tolist() == [each.encode() if isinstance(each, str) else each for each in elements]
    assert back(sent, "BYTES", (-1,)).tolist() == sent.tolist()


@given(arrays.arrays(np.float32, (4,)))
def test_bf16_is_rounded_to_the_nearest(array: np.ndarray) -> None:
    got = back(through(array, "BF16", (-1,)), "BF16", (-1,))
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.abs(got - array) <= np.abs(array) * 2.0**-8 + 1e-40
    assert np.all(near | np.isinf(got) | np.isnan(array))
    assert np.array_equal(np.isnan(got), np.isnan(array))


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        ([1.5], "INT64"),
        ([1.0], "INT32"),
        ([True], "INT32"),
        ([1], "BOOL"),
        ([300], "UINT8"),
        ([-1], "UINT8"),
        ([2**63], "INT64"),
        ([1e6], "FP16"),
        ([b"a"], "FP32"),
        ([1], "BYTES"),
        ([None], "BYTES"),
        (np.array([1], np.int32), "INT64"),
        (np.array([1]), "BYTES"),
        ([1], "WORDS"),
    ],
)
def test_no_value_changes_on_its_way(value: Any, datatype: str) -> None:
    with pytest.raises(WeirError, match="'x'"):
        inputs_of({"x": value}, [Declared("x", datatype, (-1,))], pb.ModelInferRequest())


def test_lists_are_plain() -> None:
    words = np.empty((1, 2), object)
    words[0] = [b"word", b"\xff"]
    assert lists_of({"n": np.array([[1, 2]]), "w": words}) == {"n": [[1, 2]], "w": [["word", b"\xff"]]}


MATRIX = Declared("features", "FP32", (-1, 3), (Column("age"), Column("city"), Column("income")))


def asked(given: dict[str, Any], *declared: Declared) -> np.ndarray:
    """The matrix that goes over the wire."""
    request = pb.ModelInferRequest()
    inputs_of(given, declared, request)
    [tensor], [raw] = request.inputs, request.raw_input_contents
    assert tensor.name == declared[0].name
    return np.frombuffer(raw, np.float32).reshape(tuple(tensor.shape))


def test_columns_by_name_are_put_in_the_models_order() -> None:
    rows = [[41, 2, 1.5], [29, 0, 2.5]]
    by_name = {"income": np.array([1.5, 2.5], np.float32), "age": [41, 29], "city": (2, 0)}
    assert asked(by_name, MATRIX).tolist() == asked({"features": rows}, MATRIX).tolist() == rows


@pytest.mark.parametrize(
    ("given", "limit", "why"),
    [
        ({"age": [1], "city": [2]}, "income", "column 'income' of input 'features' is missing"),
        ({"age": [1], "city": [2], "income": [3], "plan": [4]}, "plan", "no column 'plan'; it takes age, city, income"),
        ({"age": [1], "city": [2, 3], "income": [3]}, "city", "'city' of input 'features' has 2 rows, and 'age' 1"),
        ({"age": [1], "city": ["x"], "income": [3]}, "city", "'city' is FP32; these are text"),
        ({"age": [1], "city": [[2]], "income": [3]}, "city", r"'city': shape \[1, 1\] does not fit \[-1\]"),
        ({"years": [1]}, "years", "the model has no input 'years'"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(given: dict[str, Any], limit: str, why: str) -> None:
    with pytest.raises(WeirError, match=why) as refused:
        asked(given, MATRIX)
    assert refused.value.limit == limit


def test_columns_without_names_or_beside_other_inputs_are_no_inputs() -> None:
    halves = Declared("features", "FP32", (-1, 2), (Column("age"), Column("")))
    for declared in ((halves,), (MATRIX, Declared("weights", "FP32", (-1,)))):
        with pytest.raises(WeirError, match="no input 'age'"):
            asked({"age": [1]}, *declared)
