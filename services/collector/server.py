"""OTLP's trace service."""

from __future__ import annotations

from collections.abc import Callable

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from libs.clock import Clock
from libs.traces import Span
from services.collector import convert, metrics
from services.collector.policy.tail import Decided, Fate, TailSampler
from services.collector.store import TraceStore


class TraceServicer(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans from whoever has a certificate of the mesh."""

    def __init__(
        self,
        store: TraceStore,
        *,
        max_value_chars: int,
        clock: Clock,
        sampler: TailSampler | None = None,
        forward: Callable[[list[Span]], None] | None = None,
    ) -> None:
        """Without `sampler` every span is kept. `forward` is given what is kept, and must not wait."""
        self._forward = forward
        self._store = store
        self._max_value_chars = max_value_chars
        self._clock = clock
        self._sampler = sampler

    async def Export(  # noqa: N802 - the name in OTLP
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.aio.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Keeps spans, or holds them until their trace is decided; those that cannot be kept are counted in the answer,
        as OTLP wants. What sampling leaves out was not rejected."""
        spans = list(convert.spans(request.resource_spans, max_value_chars=self._max_value_chars))
        valid = [span for span in spans if span is not None]
        rejected = len(spans) - len(valid)
        metrics.REJECTED.inc(rejected)
        if self._sampler is None:
            rejected += self._keep(iter([(Fate.KEPT, valid)]))
        else:
            rejected += self._keep(self._sampler.take(valid, self._clock.monotonic()))
        response = trace_service_pb2.ExportTraceServiceResponse()
        if rejected:
            response.partial_success.rejected_spans = rejected
            response.partial_success.error_message = "spans without ids, or too many in one trace"
        return response

    def sweep(self) -> None:
        """Decides what is due; to be called about once a second."""
        if self._sampler is not None:
            self._keep(self._sampler.due(self._clock.monotonic()))

    def finish(self) -> None:
        """Decides all that waits."""
        if self._sampler is not None:
            self._keep(self._sampler.rest())

    def _keep(self, decided: Decided) -> int:
        """Writes what is kept and counts the rest; how many spans their traces had no room for."""
        evicted, rejected = self._store.evicted, 0
        for fate, spans in decided:
            if fate is not Fate.KEPT:
                metrics.SPANS.labels(fate.value).inc(len(spans))
                continue
            if self._forward is not None:
                self._forward(spans)
            kept, dropped = self._store.add(spans)
            rejected += dropped
            metrics.KEPT.inc(kept)
            metrics.REJECTED.inc(dropped)
        metrics.EVICTED.inc(self._store.evicted - evicted)
        metrics.TRACES.set(self._store.traces)
        metrics.BYTES.set(self._store.size)
        return rejected
