"""The last stage: what a request leaves behind. Its record, its metrics, and what it says about us. Nothing here waits.

Its quota and its grant were given back by then: see `Lease` and `Grant`.
"""

from __future__ import annotations

from google.protobuf import timestamp_pb2
from weir.audit.v1 import audit_pb2
from weir.safety.v1 import safety_pb2

from libs.answer_lengths import Lengths
from libs.clock import Clock
from libs.deadlines import to_duration
from libs.errors import WeirError
from libs.routing import Route
from services.gateway import metrics
from services.gateway.catalog import Catalog
from services.gateway.outcomes import Outcomes
from services.gateway.outcomes.cohorts import Begun
from services.gateway.policy.events import Accepted, End, Finish
from services.gateway.policy.plans import DEFAULT_ANSWER
from services.gateway.ports import AuditPort
from services.gateway.refusals import RefusalLog, outcome_of
from services.gateway.request import Prepared, Progress, Request, Served


class Account:
    """Accounts for requests, once for each. One per process."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        audit: AuditPort,
        outcomes: Outcomes,
        lengths: Lengths,
        clock: Clock,
        source: str,
    ) -> None:
        self._catalog = catalog
        self._audit = audit
        self._outcomes = outcomes
        self._lengths = lengths
        self._clock = clock
        self._source = source
        self.refusals = RefusalLog()

    def began(self, request: Request, prepared: Prepared) -> Begun | None:
        """The request was given this candidate; `served` or `refused` follows."""
        candidate = prepared.candidate
        if candidate.arm is None:
            return None
        return self._outcomes.began(
            candidate.arm,
            request.question(self._catalog, candidate.model),
            given=request.time.given,
            model_version=candidate.route.model_version,
            route=request.route,
            tier=candidate.version.tier,
        )

    def served(self, request: Request, progress: Progress, served: Served) -> None:
        """A request has ended that ran, or was given an answer."""
        end, accepted = served.end, served.accepted
        if request.internal is not None:
            request.span.end(end.error_reason if end.finish is Finish.ERROR else "")
            return
        tenant, told = request.identity.tenant, self._catalog.told(request.spec.model)
        for tokens, whole in served.lengths:
            self._lengths.learn(tenant, accepted.model_version, tokens, cut=not whole)
        event = audit_pb2.RequestEvent(
            request_id=request.id,
            tenant=tenant,
            key_id=request.identity.key_id,
            model=told,
            model_version=accepted.model_version,
            arm=accepted.arm,
            operation=request.spec.operation,
            outcome=end.finish.label,
            reason=end.error_reason,
            prompt_tokens=end.usage.prompt_tokens,
            completion_tokens=end.usage.completion_tokens,
            cached_prompt_tokens=end.usage.cached_prompt_tokens,
            duration=to_duration(end.breakdown.total),
            time_to_first_token=to_duration(end.breakdown.time_to_first_token),
            worker=served.worker,
            zone=accepted.zone,
            simulated=accepted.simulated,
            degraded=end.degraded,
            trace_id=accepted.trace_id,
            training_allowed=request.tenant.training_allowed,
            safety_policies=served.candidate.check.policies,
        )
        self._write(request, event)
        _observe(request.spec.operation, accepted, end)
        if DEFAULT_ANSWER not in end.degraded:  # which is quick and no service
            self._judge(request, progress, served)
        self._outcomes.over(progress.begun)
        _end_span(request, told, served)

    def refused(self, request: Request, progress: Progress, error: WeirError) -> None:
        """A request was refused before it ran."""
        request.span.end(error.reason.name)
        if request.internal is not None:
            return
        prepared, reservation = progress.prepared, progress.reservation
        metrics.outcome(request.spec.operation, outcome_of(error), error.reason.name).inc()
        self.refusals.note(request.spec.operation, error)
        self._outcomes.refused(
            route=request.route,
            model=request.spec.model,
            asked=prepared.candidate.route if prepared is not None else progress.route or self._asked(request),
            error=error,
            given=request.time.given,
            over_quota=not request.spec.batch and reservation is not None and reservation.over_quota,
            begun=progress.begun,
        )
        event = audit_pb2.RequestEvent(
            request_id=request.id,
            tenant=request.identity.tenant,
            key_id=request.identity.key_id,
            model=self._catalog.told(request.spec.model),
            operation=request.spec.operation,
            outcome=outcome_of(error),
            reason=error.reason.name,
            trace_id=request.traceparent[3:35],
            safety_policies=prepared.candidate.check.policies if prepared is not None else progress.policies,
        )
        self._write(request, event)

    def _write(self, request: Request, event: audit_pb2.RequestEvent) -> None:
        record = audit_pb2.Record(
            id=request.id, time=_timestamp(self._clock.time()), source=self._source, request=event
        )
        self._audit.write(record, traceparent=request.traceparent)

    def _judge(self, request: Request, progress: Progress, served: Served) -> None:
        candidate, end = served.candidate, served.end
        self._outcomes.ended(
            route=request.route,
            tier=candidate.version.tier,
            end=end,
            error=served.error,
            given=request.time.given,
            first=served.first,
            longest=max([tokens for tokens, _ in served.lengths], default=0),
            model_version=candidate.route.model_version,
            model=candidate.model,
            arm=candidate.arm if served.ran else None,  # an answer given before is no arm's work
            mean_logprob=served.mean_logprob,
            begun=progress.begun,
        )

    def _asked(self, request: Request) -> Route | None:
        """What a refused request would have got; None when that is nothing."""
        try:
            return self._catalog.resolve(request.question(self._catalog, request.spec.model))
        except WeirError:
            return None


def _end_span(request: Request, model: str, served: Served) -> None:
    trace, accepted, end = request.span, served.accepted, served.end
    if not trace.recording:
        return
    trace.set("gen_ai.operation.name", request.spec.operation)
    trace.set("gen_ai.request.model", model)
    trace.set("gen_ai.response.model", accepted.model_version)
    trace.set("gen_ai.response.finish_reasons", [finish.label for finish in end.choices])
    trace.set("gen_ai.usage.input_tokens", end.usage.prompt_tokens)
    trace.set("gen_ai.usage.output_tokens", end.usage.completion_tokens)
    trace.set("weir.tenant", request.identity.tenant)
    trace.set("weir.simulated", accepted.simulated)
    trace.end(end.error_reason if end.finish is Finish.ERROR else "")


def intervention(
    *, now: float, source: str, record_id: str, tenant: str, request_id: str, stage: str, found: safety_pb2.Intervention
) -> audit_pb2.Record:
    """The record of a safety finding; it names the pattern and never the text."""
    event = audit_pb2.SafetyEvent(
        request_id=request_id,
        tenant=tenant,
        stage=stage,
        category=found.category,
        pattern=found.pattern,
        action=safety_pb2.Action.Name(found.action).removeprefix("ACTION_").lower(),
        pack=found.pack,
    )
    return audit_pb2.Record(id=record_id, time=_timestamp(now), source=source, safety=event)


def _observe(operation: str, accepted: Accepted, end: End) -> None:
    """Count a request that ran."""
    children = metrics.model_metrics(operation, accepted.model_version)
    breakdown = end.breakdown
    children.duration.observe(breakdown.total)
    if breakdown.time_to_first_token:
        children.ttft.observe(breakdown.time_to_first_token)
    if end.usage.completion_tokens > 1 and breakdown.decode:
        children.per_token.observe(breakdown.decode / (end.usage.completion_tokens - 1))
    children.input_tokens.inc(end.usage.prompt_tokens)
    children.output_tokens.inc(end.usage.completion_tokens)
    for stage, child in metrics.STAGES.items():
        child.observe(getattr(breakdown, stage))
    reason = end.error_reason if end.finish in (Finish.ERROR, Finish.CONTENT_FILTER) else ""
    metrics.outcome(operation, end.finish.label, reason).inc()
    for kind in end.degraded:
        metrics.DEGRADED.labels(kind).inc()


def _timestamp(now: float) -> timestamp_pb2.Timestamp:
    return timestamp_pb2.Timestamp(seconds=int(now), nanos=int(now % 1 * 1e9))
