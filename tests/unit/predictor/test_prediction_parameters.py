"""What a request's parameters ask for, and what is refused by its name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from inference import open_inference_pb2 as oip

from libs.errors import Reason, WeirError
from services.predictor.parameters import NOTHING, asked


def request(**parameters: Any) -> oip.ModelInferRequest:
    made = oip.ModelInferRequest(model_name="m")
    made.inputs.add(name="x")
    made.outputs.add(name="y")
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(made.parameters[name], kind, value)
    return made


def refusal(made: oip.ModelInferRequest) -> WeirError:
    with pytest.raises(WeirError) as caught:
        asked(made)
    return caught.value


def test_tritons_timeout_is_in_microseconds_and_0_is_none() -> None:
    assert asked(request(timeout=1500)).timeout == pytest.approx(0.0015)
    assert asked(request(timeout=0)).timeout == math.inf
    unsigned = request()
    unsigned.parameters["timeout"].uint64_param = 2_000_000
    assert asked(unsigned).timeout == pytest.approx(2.0)


@pytest.mark.parametrize(("priority", "lowered"), [(0, False), (1, False), (2, True), (7, True)])
def test_a_priority_lowers_and_never_raises(priority: int, lowered: bool) -> None:
    assert asked(request(priority=priority)).lowered is lowered


def test_nothing_is_asked_for_by_default() -> None:
    assert asked(request()) == NOTHING
    assert asked(request(sequence_id=0, sequence_start=False)) == NOTHING  # clients send them always
    assert not asked(request(degradable=False)).degradable


@pytest.mark.parametrize(
    ("name", "value"), [("sequence_id", 7), ("sequence_id", "s"), ("sequence_start", True), ("classification", 3)]
)
def test_what_triton_knows_and_is_not_here_is_refused_by_name(name: str, value: Any) -> None:
    error = refusal(request(**{name: value}))
    assert (error.reason, error.limit) == (Reason.UNIMPLEMENTED, name)
    assert name in error.message


@pytest.mark.parametrize(
    ("name", "value"), [("timeout", -1), ("timeout", "1"), ("priority", 1.5), ("degradable", 0), ("degradeable", True)]
)
def test_what_makes_no_sense_is_refused_by_name(name: str, value: Any) -> None:
    error = refusal(request(**{name: value}))
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, name)


def test_parameters_of_tensors_are_refused_by_name() -> None:
    shared = request()
    shared.inputs[0].parameters["shared_memory_region"].string_param = "r"
    assert (refusal(shared).reason, refusal(shared).limit) == (Reason.UNIMPLEMENTED, "shared_memory_region")
    classes = request()
    classes.outputs[0].parameters["classification"].int64_param = 3
    assert (refusal(classes).reason, refusal(classes).limit) == (Reason.UNIMPLEMENTED, "classification")
    odd = request()
    odd.inputs[0].parameters["colour"].string_param = "red"
    assert (refusal(odd).reason, refusal(odd).limit) == (Reason.INVALID_REQUEST, "colour")


def test_kserves_words_of_binary_data_are_taken_where_they_are_true() -> None:
    made = request(binary_data_output=True)
    made.raw_input_contents.append(bytes(8))
    made.inputs[0].parameters["binary_data_size"].int64_param = 8
    made.outputs[0].parameters["binary_data"].bool_param = True
    assert asked(made) == NOTHING
    made.outputs[0].parameters["binary_data"].bool_param = False
    assert (refusal(made).reason, refusal(made).limit) == (Reason.INVALID_REQUEST, "binary_data")
    made.inputs[0].parameters["binary_data_size"].int64_param = 4
    assert (refusal(made).reason, refusal(made).limit) == (Reason.INVALID_REQUEST, "binary_data_size")
    del made.raw_input_contents[:]
    made.inputs[0].parameters["binary_data_size"].int64_param = 8
    assert refusal(made).limit == "binary_data_size"
    assert refusal(request(binary_data_output=False)).limit == "binary_data_output"
