"""What a request's parameters ask for. Pure but for the messages: names and meanings are Triton's, or begin with ours.

What is not known is refused by its name: a parameter that is ignored would be an answer to another question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from inference.open_inference_pb2 import InferParameter, ModelInferRequest

from libs.errors import Reason, WeirError


class Asked(NamedTuple):
    """Beside tensors."""

    timeout: float = math.inf
    """Seconds, from Triton's `timeout` in microseconds."""
    lowered: bool = False
    """Triton's `priority`, where 1 is the highest and 0 the default: whatever is below goes to the batch class."""
    degradable: bool = True
    """`degradable`: false takes nothing but the version's own, fresh computation."""


NOTHING = Asked()
_MISSING = {
    "sequence_id": "stateful models are not served",
    "sequence_start": "stateful models are not served",
    "sequence_end": "stateful models are not served",
    "shared_memory_region": "shared memory is not supported",
    "shared_memory_offset": "shared memory is not supported",
    "shared_memory_byte_size": "shared memory is not supported",
    "classification": "classification is not supported: ask for the output itself",
    "triton_enable_empty_final_response": "decoupled models are not served",
}


def asked(request: ModelInferRequest) -> Asked:
    """What the request asks for.

    :raises WeirError: UNIMPLEMENTED for what Triton knows and is not supported here, INVALID_REQUEST for what is not
        known or has no such value; both name the parameter.
    """
    for number, tensor in enumerate(request.inputs):
        if tensor.parameters:
            size = len(request.raw_input_contents[number]) if number < len(request.raw_input_contents) else -1
            _check_tensor(tensor.parameters, "an input", {"binary_data_size": size})
    for output in request.outputs:
        if output.parameters:
            _check_tensor(output.parameters, "an output", {"binary_data": True})
    if not request.parameters:
        return NOTHING
    timeout, lowered, degradable = math.inf, False, True
    for name, value in request.parameters.items():
        if name == "timeout":
            if microseconds := _whole(name, value):
                timeout = microseconds * 1e-6
        elif name == "priority":
            lowered = _whole(name, value) > 1
        elif name == "degradable":
            degradable = _truth(name, value)
        elif name == "binary_data_output" and _truth(name, value):
            continue
        elif name in _MISSING and not _is_default(value):
            raise _unsupported(name, "a request")
        elif name not in _MISSING:
            raise WeirError(Reason.INVALID_REQUEST, f"there is no parameter {name[:64]!r}", limit=name[:64])
    return Asked(timeout, lowered, degradable)


def _check_tensor(parameters: Mapping[str, InferParameter], where: str, may: Mapping[str, int]) -> None:
    """`may`: values that say what is so in any case. KServe's client sends HTTP's parameters of binary data along."""
    for name, value in parameters.items():
        if name in _MISSING:
            raise _unsupported(name, where)
        if name not in may:
            raise WeirError(Reason.INVALID_REQUEST, f"there is no parameter {name[:64]!r} of {where}", limit=name[:64])
        kind = value.WhichOneof("parameter_choice")
        if kind is None or getattr(value, kind) != may[name]:
            message = f"parameter {name!r} of {where} is not so: contents are raw, and of their own size"
            raise WeirError(Reason.INVALID_REQUEST, message, limit=name)


def _unsupported(name: str, where: str) -> WeirError:
    return WeirError(Reason.UNIMPLEMENTED, f"parameter {name!r} of {where}: {_MISSING[name]}", limit=name)


def _whole(name: str, value: InferParameter) -> int:
    kind = value.WhichOneof("parameter_choice")
    number = value.int64_param if kind == "int64_param" else value.uint64_param if kind == "uint64_param" else -1
    if number < 0:
        raise WeirError(Reason.INVALID_REQUEST, f"parameter {name!r} must be a whole number, 0 or more", limit=name)
    return number


def _truth(name: str, value: InferParameter) -> bool:
    if value.WhichOneof("parameter_choice") != "bool_param":
        raise WeirError(Reason.INVALID_REQUEST, f"parameter {name!r} must be true or false", limit=name)
    return value.bool_param


def _is_default(value: InferParameter) -> bool:
    """Clients send them always, with what means none of it."""
    kind = value.WhichOneof("parameter_choice")
    return kind is None or not getattr(value, kind)
