"""OTLP spans to the project's own record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from libs.telemetry.scrub import scrub, scrub_value
from libs.traces import Span

_KINDS = {0: "INTERNAL", 1: "INTERNAL", 2: "SERVER", 3: "CLIENT", 4: "PRODUCER", 5: "CONSUMER"}
_ID_BYTES = (16, 8)
_KEPT = ("gen_ai.", "weir.", "error.")
_KEPT_WHOLE = frozenset(
    {"component", "downstream_cluster", "guid:x-request-id", "http.method", "http.protocol", "http.status_code"}
    | {"grpc.status_code", "node_id", "peer.address", "request_size", "response_flags", "response_size"}
    | {"service.instance.id", "service.name", "service.namespace", "upstream_cluster", "upstream_cluster.name", "zone"}
)
"""Attributes that are kept: those of the mesh's own spans, and of Envoy's those in which no caller has a say."""


def spans(resources: Iterable[trace_pb2.ResourceSpans], *, max_value_chars: int) -> Iterator[Span | None]:
    """Every span of an export; None for one without valid ids."""
    for resource in resources:
        about = _attributes(resource.resource.attributes, max_value_chars)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield _span(span, about, max_value_chars)


def _span(span: trace_pb2.Span, about: dict[str, Any], limit: int) -> Span | None:
    if (len(span.trace_id), len(span.span_id)) != _ID_BYTES or not any(span.trace_id):
        return None
    error = ""
    if span.status.code == trace_pb2.Status.STATUS_CODE_ERROR:
        error = scrub(span.status.message[:limit]) or "error"
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=scrub(span.name[:limit]),
        kind=_KINDS.get(span.kind, "INTERNAL"),
        service=str(about.get("service.name", "")),
        instance=str(about.get("service.instance.id", "")),
        zone=str(about.get("weir.zone", "")),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        error=error,
        attributes=_attributes(span.attributes, limit),
    )


def _attributes(pairs: Iterable[common_pb2.KeyValue], limit: int) -> dict[str, Any]:
    return {pair.key: scrub_value(_value(pair.value, limit)) for pair in pairs if _is_kept(pair.key)}


def _is_kept(key: str) -> bool:
    return key in _KEPT_WHOLE or key.startswith(_KEPT)


def _value(value: common_pb2.AnyValue, limit: int) -> Any:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value[:limit]
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "array_value":
            return [_value(each, limit) for each in value.array_value.values]
        case "kvlist_value":
            return {pair.key: _value(pair.value, limit) for pair in value.kvlist_value.values}
        case "bytes_value":
            return value.bytes_value.hex()[:limit]
        case _:
            return None
