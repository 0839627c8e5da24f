"""Arrays and lists as the client sends and reads them, against the server's own reading of the same messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from inference import open_inference_pb2 as pb
from weir.client._tensors import Declared, inputs_of, lists_of, outputs_of

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
