"""What happens once a request is over: settle, release, report, record. Nothing here waits or fails."""

from __future__ import annotations

from libs.breaker import is_fault
from libs.clock import Clock
from libs.errors import Reason, WeirError
from services.gateway import metrics, records
from services.gateway.policy.events import Accepted, End, Finish
from services.gateway.ports import AdmissionPort, AuditPort, QuotaPort, Reservation, RouterPort
from services.gateway.request import Request, accepted_of


class Closing:
    """Ends requests, each exactly once."""

    def __init__(
        self,
        *,
        quota: QuotaPort,
        admission: AdmissionPort,
        router: RouterPort,
        audit: AuditPort,
        clock: Clock,
        source: str,
    ) -> None:
        self._quota = quota
        self._admission = admission
        self._router = router
        self._audit = audit
        self._clock = clock
        self._source = source

    def ended(self, request: Request) -> None:
        """A generation has ended, whatever way."""
        generation = request.generation
        if generation is None or generation.end is None or request.admit is None:
            raise RuntimeError("ended before it began")
        end, identity, granted = generation.end, request.identity, request.granted
        self._quota.settle(
            tenant=identity.tenant,
            model=request.spec.model,
            request_id=request.id,
            tokens=end.usage.prompt_tokens + end.usage.completion_tokens,
        )
        self._admission.release(
            request.admission_id, pool=request.admit.pool, output_tokens=end.usage.completion_tokens
        )
        served = _served(end)
        if granted is not None and served is not None:
            self.outcome(request, granted.zone, ok=served)
        accepted = generation.accepted
        if accepted is None:  # ended in the very tick of its submission
            accepted = accepted_of(request, "", Reservation(None, None), (), self._clock.time())
        self._audit.write(
            records.completed(
                now=self._clock.time(),
                source=self._source,
                identity=identity,
                spec=request.spec,
                accepted=accepted,
                end=end,
                worker=granted.worker if granted else "",
                training=request.tenant.training_allowed,
            ),
            traceparent=request.span.traceparent,
        )
        records.observe(request.spec.operation, accepted, end)
        _end_span(request, accepted, end)

    def rejected(self, request: Request, error: WeirError) -> None:
        """A request was refused before it ran."""
        metrics.outcome(request.spec.operation, "rejected", error.reason.name).inc()
        self._audit.write(
            records.rejected(
                now=self._clock.time(),
                source=self._source,
                identity=request.identity,
                spec=request.spec,
                request_id=request.id,
                error=error,
                trace_id=request.span.traceparent[3:35],
            ),
            traceparent=request.span.traceparent,
        )
        request.span.end(error.reason.name)

    def outcome(self, request: Request, zone: str, *, ok: bool) -> None:
        """Feed the breaker of the version and zone that served."""
        admit = request.admit
        if admit is not None:
            self._router.outcome(pool=admit.pool, model_version=admit.model_version, zone=zone, ok=ok)


def _served(end: End) -> bool | None:
    """Whether the zone did its part; None when the end says nothing about the zone."""
    if end.finish in (Finish.CANCELLED, Finish.DEADLINE):
        return None  # the caller's doing: its deadline may have been too short for anybody
    if end.finish is not Finish.ERROR:
        return True
    return False if is_fault(Reason.parse(end.error_reason)) else None


def _end_span(request: Request, accepted: Accepted, end: End) -> None:
    trace = request.span
    trace.set("gen_ai.operation.name", request.spec.operation)
    trace.set("gen_ai.request.model", request.spec.model)
    trace.set("gen_ai.response.model", accepted.model_version)
    trace.set("gen_ai.response.finish_reasons", [finish.label for finish in end.choices])
    trace.set("gen_ai.usage.input_tokens", end.usage.prompt_tokens)
    trace.set("gen_ai.usage.output_tokens", end.usage.completion_tokens)
    trace.set("weir.tenant", request.identity.tenant)
    trace.set("weir.simulated", accepted.simulated)
    trace.end(end.error_reason if end.finish is Finish.ERROR else "")
