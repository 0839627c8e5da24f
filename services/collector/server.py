"""OTLP's trace service."""

from __future__ import annotations

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from services.collector import convert, metrics
from services.collector.store import TraceStore


class TraceServicer(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans from whoever has a certificate of the mesh."""

    def __init__(self, store: TraceStore, *, max_value_chars: int) -> None:
        self._store = store
        self._max_value_chars = max_value_chars

    async def Export(  # noqa: N802 - the name in OTLP
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.aio.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Keeps spans; those that cannot be kept are counted in the answer, as OTLP wants."""
        spans = list(convert.spans(request.resource_spans, max_value_chars=self._max_value_chars))
        valid = [span for span in spans if span is not None]
        evicted = self._store.evicted
        kept, dropped = self._store.add(valid)
        rejected = dropped + len(spans) - len(valid)
        metrics.KEPT.inc(kept)
        metrics.REJECTED.inc(rejected)
        metrics.EVICTED.inc(self._store.evicted - evicted)
        metrics.TRACES.set(self._store.traces)
        metrics.BYTES.set(self._store.size)
        response = trace_service_pb2.ExportTraceServiceResponse()
        if rejected:
            response.partial_success.rejected_spans = rejected
            response.partial_success.error_message = "spans without ids, or too many in one trace"
        return response
