"""Unary predictions: what a model declares, one call, what came of it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from inference import open_inference_pb2 as pb
from weir.client._tensors import Column, Declared, Tensor, inputs_of, lists_of, outputs_of

from libs.errors import Reason, WeirError

_PREFIX, _STAGE = "weir_", "_us"
Call = Callable[[str, Any, str], Awaitable[Any]]
"""(method, request, model): makes the call, with its deadline, credentials and retries."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """An answer. `prediction["probability"]` is an output's array."""

    outputs: dict[str, np.ndarray]
    """By name; BYTES as object arrays of `bytes`, BF16 as float32."""
    version: str
    """The version that gave it, "name@version"."""
    arm: str = ""
    """Of a rollout; empty outside."""
    degraded: tuple[str, ...] = ()
    """What it is instead of what was asked for, such as "smaller_model"; empty: it is that."""
    trace_id: str = ""
    batch_rows: int = 0
    """Rows that ran together, the caller's own included; 0: nothing ran for it."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage: edge, decode, queue, batch, compute, encode."""

    def __getitem__(self, name: str) -> np.ndarray:
        """An output's array."""
        return self.outputs[name]

    def lists(self) -> dict[str, list[Any]]:
        """The outputs as plain lists; BYTES as text where they are UTF-8."""
        return lists_of(self.outputs)


class Declarations:
    """What models declare, as far as they were asked: an alias may lead to another version, so that what does not fit
    what is known is tried with what is declared now before it is refused."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Declared, ...]] = {}

    async def request(self, call: Call, model: str, inputs: Mapping[str, Tensor]) -> pb.ModelInferRequest:
        """A request with these inputs.

        :raises WeirError: there is no such model, or the inputs are not as declared.
        """
        fresh = model not in self._known
        while True:
            if fresh:
                await self.inputs(call, model)
            request = pb.ModelInferRequest(model_name=model)
            try:
                inputs_of(inputs, self._known[model], request)
            except WeirError:
                if fresh:
                    raise
                fresh = True
            else:
                return request

    async def inputs(self, call: Call, model: str) -> tuple[Declared, ...]:
        """What it takes now.

        :raises WeirError: there is no such model.
        """
        told = await call("ModelMetadata", pb.ModelMetadataRequest(name=model), model)
        config = (await call("ModelConfig", pb.ModelConfigRequest(name=model), model)).config
        self._known[model] = tuple(
            Declared(t.name, t.datatype, tuple(t.shape), _columns(config, t.name)) for t in told.inputs
        )
        return self._known[model]

    def forget(self, model: str) -> None:
        """What it declares may have changed."""
        self._known.pop(model, None)


async def predict(
    declarations: Declarations,
    call: Call,
    model: str,
    inputs: Mapping[str, Tensor],
    *,
    outputs: Sequence[str],
    batch: bool,
    degradable: bool,
    client_request_id: str,
) -> Prediction:
    """See `Client.predict`."""
    request = await declarations.request(call, model, inputs)
    request.id = client_request_id
    for name in outputs:
        request.outputs.add(name=name)
    if batch:
        request.parameters["priority"].uint64_param = 2
    if not degradable:
        request.parameters["degradable"].bool_param = False
    try:
        response = await call("ModelInfer", request, model)
    except WeirError as error:
        if error.reason is Reason.INVALID_REQUEST:
            declarations.forget(model)
        raise
    return _prediction(response)


def _columns(config: pb.ModelConfig, tensor: str) -> tuple[Column, ...]:
    """What the parameter `columns.NAME` says of an input's columns."""
    told = config.parameters[f"columns.{tensor}"].string_value if f"columns.{tensor}" in config.parameters else "[]"
    return tuple(Column(str(each.get("name", ""))) for each in json.loads(told))


def _prediction(response: pb.ModelInferResponse) -> Prediction:
    told = {
        name.removeprefix(_PREFIX): getattr(each, each.WhichOneof("parameter_choice") or "string_param")
        for name, each in response.parameters.items()
        if name.startswith(_PREFIX)
    }
    return Prediction(
        outputs=outputs_of(response),
        version=str(told.get("version", "")),
        arm=str(told.get("arm", "")),
        degraded=tuple(filter(None, str(told.get("degraded", "")).split(","))),
        trace_id=str(told.get("trace", "")),
        batch_rows=int(told.get("batch_rows", 0)),
        stages={name.removesuffix(_STAGE): each * 1e-6 for name, each in told.items() if name.endswith(_STAGE)},
    )
