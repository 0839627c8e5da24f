"""OTLP spans to the project's own record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from libs.telemetry.scrub import scrub, scrub_value
from libs.telemetry.tracing import MOST_LINKS
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
    if not _is_whole(span):
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
        links=[
            f"{each.trace_id.hex()}-{each.span_id.hex()}" for each in islice(filter(_is_whole, span.links), MOST_LINKS)
        ],
    )


def _is_whole(of: trace_pb2.Span | trace_pb2.Span.Link) -> bool:
    """Whether it names a span."""
    return (len(of.trace_id), len(of.span_id)) == _ID_BYTES and any(of.trace_id)


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


def exported(spans: Iterable[Span]) -> list[trace_pb2.ResourceSpans]:
    """Spans as OTLP has them, by the process that recorded them: the way back of `spans`."""
    by_process: dict[tuple[str, str, str], list[Span]] = {}
    for span in spans:
        by_process.setdefault((span.service, span.instance, span.zone), []).append(span)
    made = []
    for about, group in by_process.items():
        resource = trace_pb2.ResourceSpans(scope_spans=[trace_pb2.ScopeSpans(spans=map(_exported, group))])
        for name, value in zip(_RESOURCE, about, strict=True):
            if value:
                resource.resource.attributes.add(key=name).value.string_value = value
        made.append(resource)
    return made


_RESOURCE = ("service.name", "service.instance.id", "weir.zone")


def _exported(span: Span) -> trace_pb2.Span:
    made = trace_pb2.Span(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id),
        name=span.name,
        kind=getattr(trace_pb2.Span, f"SPAN_KIND_{span.kind}"),
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
    )
    if span.error:
        made.status.code, made.status.message = trace_pb2.Status.STATUS_CODE_ERROR, span.error
    for link in span.links:
        trace_id, _, span_id = link.partition("-")
        made.links.add(trace_id=bytes.fromhex(trace_id), span_id=bytes.fromhex(span_id))
    for key, value in span.attributes.items():
        if value is not None:
            _put(made.attributes.add(key=key).value, value)
    return made


def _put(into: common_pb2.AnyValue, value: Any) -> None:
    match value:
        case bool():
            into.bool_value = value
        case int():
            into.int_value = value
        case float():
            into.double_value = value
        case list():
            into.array_value.SetInParent()  # an empty one is none otherwise
            for each in value:
                _put(into.array_value.values.add(), each)
        case dict():
            into.kvlist_value.SetInParent()
            for key, each in value.items():
                _put(into.kvlist_value.values.add(key=key).value, each)
        case _:
            into.string_value = str(value)
