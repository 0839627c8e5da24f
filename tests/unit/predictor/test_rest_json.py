"""Bodies of the Open Inference Protocol over HTTP: what is in them comes out of the message, and faults are named."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inference import open_inference_pb2 as pb

from libs.errors import Reason, WeirError
from services.predictor.rest import coding_of, compressed
from services.predictor.rest_json import Wanted, body_of, plain, request_of


def read(asked: Any, behind: bytes = b"", length: str | None = None) -> tuple[pb.ModelInferRequest, Wanted]:
    head = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    told = length if length is not None else str(len(head)) if behind else ""
    return request_of(head + behind, told, "m", "1")


def one(**more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2.5], **more}]}


def refused(asked: Any, behind: bytes = b"", length: str | None = None) -> WeirError:
    with pytest.raises(WeirError) as caught:
        read(asked, behind, length)
    return caught.value


def test_binary_and_json_tensors_stand_side_by_side_in_their_order() -> None:
    first, last = np.array([7, 8], "<i8").tobytes(), b"\x02\x00\x00\x00hi"
    asked = {
        "id": "r1",
        "parameters": {"priority": 2, "timeout": 5, "binary_data_output": True, "big": 2**64 - 1, "why": "a", "f": 0.5},
        "inputs": [
            {"name": "a", "datatype": "INT64", "shape": [2], "parameters": {"binary_data_size": 16}},
            {"name": "b", "datatype": "FP32", "shape": [1, 2], "data": [[1, 2]]},
            {"name": "c", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6, "more": True}},
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}],
    }
    message, wanted = read(asked, first + last)
    assert list(message.raw_input_contents) == [first, np.array([1, 2], "<f4").tobytes(), last]
    assert (message.model_name, message.model_version, message.id) == ("m", "1", "r1")
    assert {name: value.WhichOneof("parameter_choice") for name, value in message.parameters.items()} == {
        "priority": "int64_param",
        "timeout": "int64_param",
        "big": "uint64_param",
        "why": "string_param",
        "f": "double_param",
    }
    assert message.inputs[2].parameters["more"].bool_param
    assert "binary_data_size" not in message.inputs[2].parameters
    assert [output.name for output in message.outputs] == ["y", "z"]
    assert not message.outputs[0].parameters
    assert wanted == Wanted(True, {"y": False, "z": False})


def test_texts_are_bytes_with_their_lengths_row_by_row_and_keep_their_zeros() -> None:
    texts = [["", "Grüße"], ["a\0", "\0"]]
    message, _ = read({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [2, 2], "data": texts}]})
    expected = [each.encode() for row in texts for each in row]
    assert message.raw_input_contents[0] == b"".join(len(each).to_bytes(4, "little") + each for each in expected)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_numbers_that_json_has_not_are_read_and_written_as_triton_does(number: float) -> None:
    message, _ = read(one(data=[number, 1]))
    (value, _) = np.frombuffer(message.raw_input_contents[0], "<f4")
    np.testing.assert_equal(value, np.float32("inf" if number == 1e300 else number))
    response = pb.ModelInferResponse(model_name="m")
    response.outputs.add(name="y", datatype="FP32", shape=[2])
    response.raw_output_contents.append(message.raw_input_contents[0])
    body, length = body_of(response, Wanted())
    assert length is None
    np.testing.assert_equal(json.loads(body)["outputs"][0]["data"], [float(value), 1.0])


@pytest.mark.parametrize(
    ("asked", "limit", "word"),
    [
        (b"", "body", "not JSON"),
        (b'{"inputs":[{"data":' + b"[" * 100_000, "body", "not JSON"),
        (b'{"parameters":{"p":' + b"9" * 10_000, "body", "out of range"),
        (b"[]", "body", "object"),
        (b"{}", "body", "inputs"),
        (one(shape=["2"]), "body", "$.inputs[0].shape[0]"),
        (one(shape=[2**63]), "body", "shape"),
        (one(data=None), "x", "neither"),
        (one(data=[1]), "x", "1 values, its shape says 2"),
        (one(data=[[1], [2, 3]]), "x", "ragged"),
        (one(data=[1, [2]]), "x", "ragged"),
        (one(data=[1, "2"]), "x", "not all FP32"),
        (one(data=[1, None]), "x", "not all FP32"),
        (one(data=[1, True]), "x", "not all FP32"),
        (one(data=[1, {}]), "x", "not all FP32"),
        (one(data=[1, 10**400]), "x", "beyond FP32"),
        (one(datatype="INT8", data=[1, 128]), "x", "beyond INT8"),
        (one(datatype="UINT64", data=[1, -1]), "x", "beyond UINT64"),
        (one(datatype="INT32", data=[1, 1.0]), "x", "not all INT32"),
        (one(datatype="BOOL", data=[1, 0]), "x", "not all BOOL"),
        (one(datatype="BYTES"), "x", "texts"),
        (one(datatype="BYTES", data=["\ud800", ""]), "x", "surrogate"),
        (one(datatype="FP16"), "x", "binary alone"),
        (one(datatype="BF16"), "x", "binary alone"),
        (one(datatype="FLOAT"), "x", "no datatype 'FLOAT'"),
        (one(parameters={"binary_data_size": 4}), "x", "one of them"),
        (one(data=None, parameters={"binary_data_size": 4}), "x", "0 bytes are left"),
        (one(data=None, parameters={"binary_data_size": True}), "x", "0 bytes are left"),
        (one(parameters={"p": 2**64}), "p", "64 bits"),
        (one(parameters={"p": []}), "body", "parameters"),
    ],
)
def test_a_fault_is_named(asked: Any, limit: str, word: str) -> None:
    error = refused(asked)
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, limit)
    assert word in error.message


def test_one_long_text_among_numbers_costs_no_more_than_itself() -> None:
    """NumPy would make texts of its length of all values: a terabyte."""
    assert "not all FP32" in refused(one(data=["x" * 500_000, *[1] * 500_000])).message


def test_lists_may_be_as_deep_as_tensors_are() -> None:
    deep: Any = 1.0
    for _ in range(200):
        deep = [deep]
    assert "dimensions" in refused(one(data=deep)).message


@pytest.mark.parametrize("length", ["x", "-1", "999", "9" * 20])
def test_the_length_of_the_json_is_checked(length: str) -> None:
    assert refused(one(), length=length).limit == "inference-header-content-length"


def test_bytes_that_are_no_tensors_are_refused_and_so_is_a_body_without_json() -> None:
    assert "3 bytes behind" in refused(one(), b"abc").message
    assert refused(b"raw", length="0").reason is Reason.UNIMPLEMENTED


def test_shared_memory_comes_as_far_as_where_parameters_are_refused() -> None:
    message, _ = read(one(data=None, parameters={"shared_memory_region": "r", "shared_memory_byte_size": 8}))
    assert set(message.inputs[0].parameters) == {"shared_memory_region", "shared_memory_byte_size"}


def test_an_answer_is_json_with_binary_behind_where_that_was_asked_for() -> None:
    response = pb.ModelInferResponse(model_name="m", model_version="1", id="r1")
    response.parameters["degraded"].string_param = "prior"
    for name, datatype, raw in (
        ("a", "INT8", b"\xff\x01"),
        ("b", "BYTES", b"\x02\x00\x00\x00hi\x00\x00\x00\x00"),
        ("c", "BOOL", b"\x01\x00"),
    ):
        response.outputs.add(name=name, datatype=datatype, shape=[2])
        response.raw_output_contents.append(raw)
    body, length = body_of(response, Wanted(False, {"a": True}))
    assert length is not None
    assert body[length:] == b"\xff\x01"
    assert json.loads(body[:length]) == {
        "model_name": "m",
        "model_version": "1",
        "id": "r1",
        "parameters": {"degraded": "prior"},
        "outputs": [
            {"name": "a", "datatype": "INT8", "shape": [2], "parameters": {"binary_data_size": 2}},
            {"name": "b", "datatype": "BYTES", "shape": [2], "data": ["hi", ""]},
            {"name": "c", "datatype": "BOOL", "shape": [2], "data": [True, False]},
        ],
    }


@pytest.mark.parametrize(("datatype", "raw"), [("FP16", b"\0\0"), ("BF16", b"\0\0"), ("BYTES", b"\x01\0\0\0\xff")])
def test_an_output_that_json_cannot_hold_must_be_asked_for_in_binary(datatype: str, raw: bytes) -> None:
    response = pb.ModelInferResponse(raw_output_contents=[raw])
    response.outputs.add(name="y", datatype=datatype, shape=[1])
    with pytest.raises(WeirError) as caught:
        body_of(response, Wanted())
    assert caught.value.limit == "y"
    assert "binary_data" in caught.value.message
    assert body_of(response, Wanted(True))[0].endswith(raw)


@given(
    st.sampled_from(["FP32", "FP64"]),
    st.lists(st.floats(width=32), min_size=1, max_size=20),
)
def test_floats_come_back_to_the_last_bit(datatype: str, values: list[float]) -> None:
    message, _ = read(one(datatype=datatype, shape=[len(values)], data=values))
    response = pb.ModelInferResponse(raw_output_contents=message.raw_input_contents)
    response.outputs.add(name="y", datatype=datatype, shape=[len(values)])
    np.testing.assert_array_equal(json.loads(body_of(response, Wanted())[0])["outputs"][0]["data"], values)


@given(st.binary(max_size=200), st.text(max_size=6))
def test_whatever_comes_is_read_or_refused(body: bytes, length: str) -> None:
    with contextlib.suppress(WeirError):
        request_of(body, length, "m", "")


def test_numbers_of_64_bits_stay_numbers() -> None:
    stats = pb.ModelStatisticsResponse()
    stats.model_stats.add(name="m", inference_count=2**63).inference_stats.success.ns = 5
    (told,) = plain(stats)["model_stats"]
    assert (told["name"], told["inference_count"], told["inference_stats"]["success"]) == (
        "m",
        2**63,
        {"count": 0, "ns": 5},
    )
    config = pb.ModelConfigResponse()
    config.config.input.add(name="x", data_type=pb.TYPE_FP32, dims=[-1])
    config.config.parameters["p"].string_value = "v"
    told = plain(config)["config"]
    assert told["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}]
    assert told["parameters"] == {"p": {"string_value": "v"}}


def test_an_answer_in_a_content_coding_can_be_read_by_anybody() -> None:
    assert gzip.decompress(compressed(b"x", "gzip")) == zlib.decompress(compressed(b"x", "deflate")) == b"x"


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("", ""),
        ("br", ""),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("deflate, gzip;q=0.5", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip;q=0.000", ""),
        ("GZIP ; q=1", "gzip"),
        ("identity", ""),
    ],
)
def test_the_content_coding_of_an_answer(accepted: str, coding: str) -> None:
    assert coding_of(accepted) == coding
