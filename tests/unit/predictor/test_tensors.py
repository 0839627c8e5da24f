"""The codec against tritonclient's own serialisation, and everything a caller can get wrong."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from inference import open_inference_pb2 as pb

from libs.errors import Reason, WeirError
from libs.resources.checks.predictions import DATATYPES
from services.predictor import tensors
from services.predictor.port import Signature, Tensor
from tests.unit.predictor.oip_client import Triton

NUMERIC = sorted(set(tensors.DTYPES) - {"BYTES", "BF16"})
TYPED = sorted(set(NUMERIC) - {"FP16"})
SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=5)


@pytest.fixture(scope="module")
def triton() -> Iterator[Triton]:
    process = Triton()
    yield process
    process.close()


def _signature(*inputs: Tensor, outputs: tuple[Tensor, ...] = (), max_rows: int = 0) -> Signature:
    return Signature(inputs, outputs, max_rows)


def _any(name: str, datatype: str, dims: int) -> Tensor:
    return Tensor(name, datatype, (-1,) * dims)


def _raw(name: str, datatype: str, shape: list[int], raw: bytes) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    return pb.ModelInferRequest(inputs=[tensor], raw_input_contents=[raw])


def _typed(name: str, datatype: str, shape: list[int], **contents: Any) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=shape, contents=pb.InferTensorContents(**contents)
    )
    return pb.ModelInferRequest(inputs=[tensor])


def _refusal(request: pb.ModelInferRequest, signature: Signature) -> WeirError:
    with pytest.raises(WeirError) as refused:
        tensors.decode(request, signature)
    return refused.value


def test_every_datatype_of_the_protocol_is_known_to_registry_and_codec() -> None:
    assert set(DATATYPES) == set(tensors.DTYPES)


@given(data=st.data())
def test_numbers_go_through_as_tritonclient_writes_and_reads_them(triton: Triton, data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(NUMERIC))
    array = data.draw(hnp.arrays(tensors.DTYPES[datatype], SHAPES))
    declared = _any("x", datatype, array.ndim)
    sent = pb.ModelInferRequest.FromString(triton.request("x", datatype, array))

    got = tensors.decode(sent, _signature(declared))["x"]
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()

    response = pb.ModelInferResponse()
    tensors.encode({"x": got}, [declared], response)
    assert triton.read(response.SerializeToString(), "x").tobytes() == array.tobytes()


@given(array=hnp.arrays(object, SHAPES, elements=st.binary(max_size=12)))
def test_bytes_go_through_whatever_they_are(triton: Triton, array: np.ndarray) -> None:
    declared = _any("x", "BYTES", array.ndim)
    sent = pb.ModelInferRequest.FromString(triton.request("x", "BYTES", array))
    got = tensors.decode(sent, _signature(declared))["x"]
    assert got.shape == array.shape
    assert got.tolist() == array.tolist()

    response = pb.ModelInferResponse()
    tensors.encode({"x": got}, [declared], response)
    assert triton.read(response.SerializeToString(), "x").tolist() == array.tolist()


@given(array=hnp.arrays(np.float32, SHAPES, elements=st.floats(width=32)))
def test_bf16_is_the_upper_half_of_a_float(triton: Triton, array: np.ndarray) -> None:
    half = array.astype(ml_dtypes.bfloat16)
    declared = _any("x", "BF16", half.ndim)
    sent = pb.ModelInferRequest.FromString(triton.request("x", "BF16", half))
    got = tensors.decode(sent, _signature(declared))["x"]
    assert got.dtype == np.uint16
    assert got.view(ml_dtypes.bfloat16).tobytes() == half.tobytes()

    response = pb.ModelInferResponse()
    tensors.encode({"x": got}, [declared], response)
    assert triton.read(response.SerializeToString(), "x").tobytes() == half.tobytes()


@given(st.data())
def test_typed_contents_are_the_same_numbers(data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(TYPED))
    array = data.draw(hnp.arrays(tensors.DTYPES[datatype], SHAPES))
    request = _typed("x", datatype, list(array.shape), **{tensors._CONTENTS[datatype]: array.ravel().tolist()})
    got = tensors.decode(request, _signature(_any("x", datatype, array.ndim)))["x"]
    assert got.dtype == array.dtype
    assert np.array_equal(got, array, equal_nan=array.dtype.kind == "f")


def test_typed_bytes() -> None:
    request = _typed("x", "BYTES", [2, 1], bytes_contents=[b"", b"\xff\x00"])
    assert tensors.decode(request, _signature(_any("x", "BYTES", 2)))["x"].tolist() == [[b""], [b"\xff\x00"]]


def test_a_raw_tensor_is_not_copied_and_not_to_be_written() -> None:
    raw = np.arange(6, dtype=np.float32).tobytes()
    got = tensors.from_raw(raw, _any("x", "FP32", 2), [2, 3])
    assert np.shares_memory(got, np.frombuffer(raw, np.float32))
    assert not got.flags.writeable
    assert got.flags.c_contiguous


FP = _signature(Tensor("x", "FP32", (-1, 3)), max_rows=4)
TEXT = _signature(Tensor("x", "BYTES", (-1,)), max_rows=4)


@pytest.mark.parametrize(
    ("shape", "number", "said"),
    [
        ([-1, 3], 0, "dimension 0 is -1"),
        ([0, 3], 0, "dimension 0 is 0"),
        ([1, -1], 1, "dimension 1 is -1"),
        ([1, 0], 1, "dimension 1 is 0"),
        ([1, 4], 1, "dimension 1 is 4; it must be 3"),
        ([-(2**63), 3], 0, "dimension 0 is -9223372036854775808"),
    ],
)
def test_a_bad_dimension_is_named(shape: list[int], number: int, said: str) -> None:
    error = _refusal(_raw("x", "FP32", shape, bytes(12)), FP)
    assert error.reason is Reason.INVALID_REQUEST
    assert error.limit == f"x.shape[{number}]"
    assert "input 'x'" in error.message
    assert said in error.message


def test_a_dimension_that_any_size_fits_is_still_at_least_one() -> None:
    for size in (-1, 0):
        assert (
            "must be at least 1" in _refusal(_raw("x", "FP32", [size], b""), _signature(_any("x", "FP32", 1))).message
        )


@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "INT8"])
@pytest.mark.parametrize("shape", [[2**62, 4], [2**63 - 1, 2**63 - 1], [2**32, 2**32], [2**31, 2]])
def test_dimensions_that_overflow_allocate_nothing(datatype: str, shape: list[int]) -> None:
    signature = _signature(_any("x", datatype, 2))
    assert "input 'x'" in _refusal(_raw("x", datatype, shape, bytes(16)), signature).message
    field = tensors._CONTENTS[datatype]
    contents = {field: [b""] if datatype == "BYTES" else [1]}
    assert "input 'x'" in _refusal(_typed("x", datatype, shape, **contents), signature).message


@pytest.mark.parametrize("size", [0, 11, 13, 24])
def test_raw_contents_that_do_not_fill_the_shape(size: int) -> None:
    message = _refusal(_raw("x", "FP32", [1, 3], bytes(size)), FP).message
    assert message == f"input 'x': {size} bytes of raw contents; shape [1,3] of FP32 is 12"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "raw contents end after 0 elements; shape [2] has 2"),
        (b"\x01\x00\x00\x00a", "raw contents end after 1 elements"),
        (b"\x01\x00\x00\x00a\x00\x00", "raw contents end after 1 elements"),
        (b"\x01\x00\x00\x00a\x05\x00\x00\x00b", "element 1 says that it has 5 bytes; 1 are left"),
        (b"\xff\xff\xff\xff", "element 0 says that it has 4294967295 bytes; 0 are left"),
        (bytes(8) + b"x", "1 bytes of raw contents behind the 2 elements"),
    ],
)
def test_bytes_that_are_cut_or_too_long(raw: bytes, said: str) -> None:
    message = _refusal(_raw("x", "BYTES", [2], raw), TEXT).message
    assert message.startswith("input 'x': ")
    assert said in message


def test_a_million_empty_elements_are_not_looked_at() -> None:
    count = tensors.MAX_ELEMENTS + 1
    signature = _signature(_any("x", "BYTES", 1))
    assert "more than 65536 elements" in _refusal(_raw("x", "BYTES", [count], bytes(4 * count)), signature).message


def test_one_form_for_all_inputs() -> None:
    signature = _signature(_any("a", "FP32", 1), _any("b", "FP32", 1))
    request = _raw("a", "FP32", [1], bytes(4))
    request.MergeFrom(_typed("b", "FP32", [1], fp32_contents=[1.0]))
    error = _refusal(request, signature)
    assert error.message == "input 'b' has typed contents, and the request raw ones: one form for all inputs"
    request.raw_input_contents.append(bytes(4))
    assert "one form for all inputs" in _refusal(request, signature).message


def test_as_many_raw_contents_as_inputs() -> None:
    request = _raw("x", "FP32", [1, 3], bytes(12))
    request.raw_input_contents.append(b"")
    assert _refusal(request, FP).message == "there are 1 inputs, but 2 raw contents"


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_travels_raw_only(datatype: str) -> None:
    request = _typed("x", datatype, [1], fp32_contents=[1.0])
    message = _refusal(request, _signature(_any("x", datatype, 1))).message
    assert message == f"input 'x': {datatype} travels in raw_input_contents only"


def test_typed_contents_in_another_field_or_number() -> None:
    assert (
        "travels in fp32_contents, not in fp64_contents"
        in _refusal(_typed("x", "FP32", [1, 3], fp64_contents=[1.0] * 3), FP).message
    )
    assert _refusal(_typed("x", "FP32", [1, 3], fp32_contents=[1.0]), FP).message == (
        "input 'x': 1 elements; shape [1,3] has 3"
    )


@pytest.mark.parametrize(
    ("datatype", "field", "value"),
    [
        ("INT8", "int_contents", 128),
        ("INT16", "int_contents", -(2**15) - 1),
        ("UINT8", "uint_contents", 256),
        ("UINT16", "uint_contents", 2**16),
    ],
)
def test_an_element_that_does_not_fit_is_refused_not_wrapped(datatype: str, field: str, value: int) -> None:
    request = _typed("x", datatype, [1], **{field: [value]})
    error = _refusal(request, _signature(_any("x", datatype, 1)))
    assert error.message == f"input 'x': an element does not fit {datatype}"


def test_a_bool_is_zero_or_one() -> None:
    assert "0 or 1" in _refusal(_raw("x", "BOOL", [2], b"\x01\x02"), _signature(_any("x", "BOOL", 1))).message


def test_inputs_that_are_missing_unknown_or_there_twice() -> None:
    signature = _signature(_any("a", "FP32", 1), _any("b", "FP32", 1))
    a = _raw("a", "FP32", [1], bytes(4))
    assert _refusal(a, signature).message == "missing input 'b'"
    twice = _raw("a", "FP32", [1], bytes(4))
    twice.MergeFrom(a)
    assert _refusal(twice, signature).message == "input 'a' is there twice"
    unknown = _refusal(_raw("c" * 1000, "FP32", [1], bytes(4)), signature)
    assert unknown.message == f"the model has no input '{'c' * 64}'; it takes 'a', 'b'"
    assert _refusal(pb.ModelInferRequest(), signature).message == "missing input 'a', 'b'"


def test_another_datatype_or_number_of_dimensions_than_declared() -> None:
    error = _refusal(_raw("x", "FP64", [1, 3], bytes(24)), FP)
    assert (error.limit, error.message) == ("x.datatype", "input 'x' is 'FP64'; the model takes FP32")
    assert _refusal(_raw("x", "FP32", [3], bytes(12)), FP).message == (
        "input 'x' has 1 dimensions; the model takes 2, [-1, 3]"
    )


def test_rows_agree_and_have_a_limit() -> None:
    signature = _signature(_any("a", "FP32", 1), _any("b", "FP32", 1), max_rows=4)
    request = _raw("a", "FP32", [2], bytes(8))
    request.MergeFrom(_raw("b", "FP32", [1], bytes(4)))
    error = _refusal(request, signature)
    assert (error.limit, error.message) == ("b.shape[0]", "input 'b': dimension 0 is 1, but input 'a' has 2 rows")
    assert _refusal(_raw("x", "FP32", [5, 3], bytes(60)), FP).message == (
        "input 'x': dimension 0 is 5; the model takes at most 4 rows"
    )


def _asked(*names: str) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name=n) for n in names])


def test_outputs_in_the_order_asked_for() -> None:
    p, q = _any("p", "FP32", 1), Tensor("q", "FP32", (-1,), on_request=True)
    signature = _signature(outputs=(p, q))
    assert tensors.requested(_asked("q", "p"), signature) == (q, p)
    assert tensors.requested(_asked(), signature) == (p,)
    for names, said in ((("r",), "the model has no output 'r'; it gives 'p', 'q'"), (("p", "p"), "asked for twice")):
        with pytest.raises(WeirError, match=said):
            tensors.requested(_asked(*names), signature)


@given(
    st.binary(max_size=64),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.sampled_from(sorted(tensors.DTYPES)),
)
def test_whatever_comes_it_is_an_array_of_its_shape_or_a_refusal(raw: bytes, shape: list[int], datatype: str) -> None:
    with contextlib.suppress(WeirError):
        array = tensors.from_raw(raw, _any("x", datatype, 2), shape)
        assert list(array.shape) == shape
        assert math.prod(shape) == array.size
