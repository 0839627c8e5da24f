"""What callers are told of servers, models and answers, in the protocol's messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from google.protobuf import json_format
from inference import open_inference_pb2 as pb
from weir.registry.v1 import registry_pb2

from services.predictor.call import Answer, Call
from services.predictor.statistics import Duration, Statistics, Version

_TYPES = {"BYTES": "STRING"}
_STATES = {
    registry_pb2.LOAD_STATE_FETCHING: "LOADING",
    registry_pb2.LOAD_STATE_VERIFYING: "LOADING",
    registry_pb2.LOAD_STATE_LOADING: "LOADING",
    registry_pb2.LOAD_STATE_READY: "READY",
    registry_pb2.LOAD_STATE_FAILED: "UNAVAILABLE",
    registry_pb2.LOAD_STATE_UNLOADED: "UNAVAILABLE",
}
"""Triton's words for them."""
_EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "schedule_policy", "statistics")
"""Of Triton's, those that hold here."""


NOBODY_ELSE = (("x-envoy-ratelimited", "true"),)
"""Trailers of a refusal that another predictor would repeat: Envoy tries what says so no more, where it tries
UNAVAILABLE again."""


def server() -> pb.ServerMetadataResponse:
    """Who this is."""
    return pb.ServerMetadataResponse(name="weir", version="2", extensions=_EXTENSIONS)


def platform_of(spec: registry_pb2.PredictionSpec) -> str:
    """The format of the model itself, beside which Python only prepares: "xgboost"."""
    formats = [step.format for step in spec.steps]
    return next((each for each in formats if each != "python"), formats[0] if formats else "")


def metadata(name: str, version: str, spec: registry_pb2.PredictionSpec) -> pb.ModelMetadataResponse:
    """What a version takes and gives; `name` as it was asked for."""
    tensor = pb.ModelMetadataResponse.TensorMetadata
    return pb.ModelMetadataResponse(
        name=name,
        versions=[_number(version)],
        platform=platform_of(spec),
        inputs=[tensor(name=each.name, datatype=each.datatype, shape=each.shape) for each in spec.inputs],
        outputs=[tensor(name=each.name, datatype=each.datatype, shape=each.shape) for each in spec.outputs],
    )


def config(name: str, version: str, spec: registry_pb2.PredictionSpec) -> pb.ModelConfigResponse:
    """The same as Triton's configuration, whose dimensions leave that of the rows out; an input's rules of values are
    the parameter `rules.NAME`, and what is known of its columns is `columns.NAME`, both in JSON."""
    skip = 1 if spec.max_rows else 0
    found = pb.ModelConfig(
        name=name,
        platform=platform_of(spec),
        backend=platform_of(spec),
        max_batch_size=spec.max_rows,
        input=[pb.ModelInput(name=t.name, data_type=_type(t.datatype), dims=t.shape[skip:]) for t in spec.inputs],
        output=[pb.ModelOutput(name=t.name, data_type=_type(t.datatype), dims=t.shape[skip:]) for t in spec.outputs],
        dynamic_batching=pb.ModelDynamicBatching() if spec.max_rows > 1 else None,
        response_cache=pb.ModelResponseCache(enable=bool(spec.cache_seconds)),
    )
    found.parameters["version"].string_value = version
    for tensor in spec.inputs:
        for what, listed in (("rules", tensor.rules), ("columns", tensor.columns)):
            if listed:
                plain = [json_format.MessageToDict(each, preserving_proto_field_name=True) for each in listed]
                found.parameters[f"{what}.{tensor.name}"].string_value = json.dumps(plain)
    return pb.ModelConfigResponse(config=found)


def statistics(named: Iterable[tuple[str, str]], counted: Statistics) -> pb.ModelStatisticsResponse:
    """What became of requests, by name and version."""
    return pb.ModelStatisticsResponse(
        model_stats=[_statistics(name, version, counted.find(version) or Version()) for name, version in named]
    )


def index(
    listed: Iterable[tuple[str, str]], states: Sequence[registry_pb2.ModelState], *, only_ready: bool
) -> pb.RepositoryIndexResponse:
    """Names with the version that each leads to, and how far it is."""
    known = {each.model_version: each for each in states}
    response = pb.RepositoryIndexResponse()
    for name, version in listed:
        held = known.get(version)
        state = _STATES.get(held.state, "UNKNOWN") if held is not None else "UNAVAILABLE"
        if state == "READY" or not only_ready:
            reason = held.detail if held is not None else "not loaded here"
            response.models.add(name=name.partition("@")[0], version=_number(version), state=state, reason=reason)
    return response


def tell(answer: Answer, call: Call) -> None:
    """Write into the response what it is: version, arm, trace, batch, stages in microseconds, what the ladder did."""
    parameters, stages = answer.response.parameters, answer.stages
    parameters["weir_version"].string_param = answer.version
    if call.route.arm:
        parameters["weir_arm"].string_param = call.route.arm
    parameters["weir_trace"].string_param = call.traceparent[3:35]
    parameters["weir_batch_rows"].int64_param = answer.batch_rows
    if answer.degraded:
        parameters["weir_degraded"].string_param = ",".join(answer.degraded)
    parameters["weir_edge_us"].int64_param = round(stages.edge * 1e6)
    parameters["weir_decode_us"].int64_param = round(stages.decode * 1e6)
    parameters["weir_queue_us"].int64_param = round(stages.queue * 1e6)
    parameters["weir_batch_us"].int64_param = round(stages.batch * 1e6)
    parameters["weir_compute_us"].int64_param = round(stages.compute * 1e6)
    parameters["weir_encode_us"].int64_param = round(stages.encode * 1e6)


def trailers(answer: Answer, call: Call) -> tuple[tuple[str, str], ...]:
    """The same for whoever reads headers: stages as `server-timing` (W3C Server Timing, milliseconds)."""
    stages = answer.stages
    timing = (
        f"edge;dur={stages.edge * 1e3:.3f}, decode;dur={stages.decode * 1e3:.3f}, queue;dur={stages.queue * 1e3:.3f}, "
        f"batch;dur={stages.batch * 1e3:.3f}, compute;dur={stages.compute * 1e3:.3f}, "
        f"encode;dur={stages.encode * 1e3:.3f}"
    )
    told = [
        ("x-request-id", call.request_id),
        ("x-weir-model-version", answer.version),
        ("x-weir-batch-rows", str(answer.batch_rows)),
        ("server-timing", timing),
    ]
    if call.route.arm:
        told.append(("x-weir-arm", call.route.arm))
    if answer.degraded:
        told.append(("x-weir-degraded", ",".join(answer.degraded)))
    return tuple(told)


def _number(version: str) -> str:
    return version.rpartition("@")[2]


def _type(datatype: str) -> pb.DataType:
    return pb.DataType.Value(  # type: ignore[return-value]  # the stubs know their enums as integers only
        f"TYPE_{_TYPES.get(datatype, datatype)}"
    )


def _statistics(name: str, version: str, counts: Version) -> pb.ModelStatistics:
    return pb.ModelStatistics(
        name=name,
        version=_number(version),
        last_inference=round(counts.last * 1e3),
        inference_count=counts.rows,
        execution_count=counts.executions,
        inference_stats=pb.InferStatistics(
            success=_duration(counts.success),
            fail=_duration(counts.fail),
            queue=_duration(counts.queue),
            compute_input=_duration(counts.input),
            compute_infer=_duration(counts.infer),
            compute_output=_duration(counts.output),
            cache_hit=_duration(counts.cache_hit),
            cache_miss=_duration(counts.cache_miss),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=size,
                compute_input=_duration(batches.input),
                compute_infer=_duration(batches.infer),
                compute_output=_duration(batches.output),
            )
            for size, batches in sorted(counts.by_size.items())
        ],
    )


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=round(duration.seconds * 1e9))
