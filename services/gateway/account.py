"""The last stage: what a request leaves behind. Its record, its metrics, and what it says about us. Nothing here waits.

Its quota and its grant were given back by then: see `Lease` and `Grant`.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.audit.v1 import audit_pb2
from weir.quota.v1 import quota_pb2

from libs.apikeys import user_pseudonym
from libs.auditlog.security import to_timestamp
from libs.catalog.plans import DEFAULT_ANSWER
from libs.deadlines import to_duration, to_seconds
from libs.errors import WeirError
from libs.limiter import Reservation
from libs.outcomes import Begun, tenants
from libs.routing import Route
from libs.telemetry import get_logger
from services.gateway import metrics
from services.gateway.parts import Parts
from services.gateway.policy.events import End, Finish
from services.gateway.policy.finals import ran
from services.gateway.refusals import outcome_of
from services.gateway.request import Accepted, Prepared, Progress, Request, Served, class_of

log = get_logger(__name__)


def began(parts: Parts, request: Request, prepared: Prepared) -> Begun | None:
    """The request was given this candidate; `served` or `refused` follows."""
    candidate = prepared.candidate
    if candidate.arm is None:
        return None
    return parts.outcomes.began(
        candidate.arm,
        request.question(parts.catalog, candidate.model),
        given=request.time.given,
        model_version=candidate.route.model_version,
        route=request.route,
        tier=candidate.version.tier,
    )


def served(parts: Parts, request: Request, progress: Progress, what: Served) -> None:
    """A request has ended that ran, or was given an answer."""
    end, accepted, candidate = what.end, what.accepted, what.candidate
    if request.internal is not None:
        request.span.end(end.error_reason if end.finish is Finish.ERROR else "")
        return
    for tokens, whole in what.lengths:
        parts.lengths.learn(request.identity.tenant, accepted.model_version, tokens, cut=not whole)
    event = _event(parts, request, end.finish.label, end.error_reason, candidate.check.policies)
    event.model_version, event.arm = accepted.model_version, accepted.arm
    event.prompt_tokens = end.usage.prompt_tokens
    event.completion_tokens = end.usage.completion_tokens
    event.cached_prompt_tokens = end.usage.cached_prompt_tokens
    event.duration.CopyFrom(to_duration(end.breakdown.total))
    event.time_to_first_token.CopyFrom(to_duration(end.breakdown.time_to_first_token))
    event.worker, event.zone, event.simulated = what.worker, accepted.zone, accepted.simulated
    event.degraded.extend(end.degraded)
    if (resumed := request.spec.resumed) is not None:
        event.resumes = resumed.cursor.origin.request_id
        event.resumed_tokens = end.earlier.completion_tokens
    event.queue_class = progress.queue_class
    told = accepted.cost(end.usage)
    event.spend_microusd = _spend(parts, event, request.spec.model) if told is None else told
    _write(parts, request, progress, event)
    _observe(request.spec.operation, accepted, end, accepted.trace_id if request.span.recording else "")
    if end.finish in (Finish.ERROR, Finish.DEADLINE):
        parts.ends.broke(request.spec.operation, end.finish.label, end.error_reason, request.traceparent)
    if DEFAULT_ANSWER not in end.degraded:  # which is quick and no service
        parts.outcomes.ended(
            ran(
                end,
                first=what.first,
                longest=max([tokens for tokens, _ in what.lengths], default=0),
                model_version=candidate.route.model_version,
                model=candidate.model,
                mean_logprob=what.mean_logprob,
            ),
            route=request.route,
            tier=candidate.version.tier,
            given=request.time.given,
            arm=candidate.arm if what.ran else None,  # an answer given before is no arm's work
            begun=progress.begun,
        )
    parts.outcomes.over(progress.begun)
    _end_span(request, event, end)


def refused(
    parts: Parts, request: Request, progress: Progress, reservation: Reservation | None, error: WeirError
) -> None:
    """A request was refused before it ran."""
    if request.internal is not None or (progress.place < 0 and request.again(error)):
        request.span.end(error.reason.name)
        return
    metrics.outcome(request.spec.operation, outcome_of(error), error.reason.name).inc()
    parts.ends.refused(request.spec.operation, error, request.traceparent)
    parts.outcomes.refused(
        route=request.route,
        model=request.spec.model,
        asked=progress.route or _would_get(parts, request),
        error=error,
        given=request.time.given,
        over_quota=not request.spec.batch and reservation is not None and reservation.over_quota,
        begun=progress.begun,
    )
    event = _event(parts, request, outcome_of(error), error.reason.name, progress.policies)
    event.queue_class = progress.queue_class
    _write(parts, request, progress, event)
    _describe(request, event)
    request.span.end(error.reason.name)


def opened(parts: Parts, request: Request, progress: Progress, prepared: Prepared, lease_id: str) -> None:
    """The request is going to run: from now on its journal keeps how much of it was delivered, and what it holds; once
    more where it is going to run on something else after all, or goes on there."""
    if request.internal is not None:
        return
    candidate = prepared.candidate
    event = _event(parts, request, "", "", candidate.check.policies)
    event.model_version, event.arm = candidate.route.model_version, candidate.route.arm
    event.prompt_tokens = candidate.prompt_tokens
    if (resumed := request.spec.resumed) is not None:
        event.resumes = resumed.cursor.origin.request_id
        if resumed.billed is not None:
            event.prompt_tokens, event.resumed_tokens = 0, resumed.billed
    event.queue_class = progress.queue_class = class_of(prepared.queue_class)
    event.degraded.extend(prepared.degraded)
    progress.place = parts.audit.open(_record(parts, lease_id, event), progress.place)


def lost(parts: Parts, record: audit_pb2.Record, delivered: int) -> audit_pb2.Record:
    """The record of a request that ran here when this gateway's former life was killed, from what it had opened; its
    quota is settled, too. Where nothing had been delivered, nothing is billed."""
    event = record.request
    delivered = max(0, delivered - event.resumed_tokens)  # which another request is billed
    event.outcome, event.completion_tokens = "gateway_lost", min(delivered, 2**32 - 1)
    if not delivered:
        event.prompt_tokens = 0
    event.spend_microusd = _spend(parts, event, event.model)
    parts.quota.settle(
        quota_pb2.Settle(
            tenant=event.tenant,
            model=event.model,
            request_id=record.id,
            tokens=event.prompt_tokens + event.completion_tokens,
            prompt_tokens=event.prompt_tokens,
            model_version=event.model_version,
        )
    )
    record.id = event.request_id
    return record


def _event(
    parts: Parts, request: Request, outcome: str, reason: str, policies: Sequence[str]
) -> audit_pb2.RequestEvent:
    return audit_pb2.RequestEvent(
        request_id=request.id,
        tenant=request.identity.tenant,
        key_id=request.identity.key_id,
        model=parts.catalog.told(request.spec.model),
        operation=request.spec.operation,
        outcome=outcome,
        reason=reason,
        user=_user(request),
        trace_id=request.traceparent[3:35],
        training_allowed=request.tenant.training_allowed,
        safety_policies=policies,
    )


def _user(request: Request) -> str:
    """Who asked, of the tenant's users; never by the name that the caller wrote."""
    user, identity = request.spec.user, request.identity
    return user if not user or user == identity.key_id else user_pseudonym(identity.tenant, user)


def _spend(parts: Parts, event: audit_pb2.RequestEvent, model: str) -> int:
    tokens = event.prompt_tokens + event.completion_tokens
    price = parts.catalog.prices.of(event.model_version, model)
    return price.cost(tokens, event.prompt_tokens, event.cached_prompt_tokens)


def _write(parts: Parts, request: Request, progress: Progress, event: audit_pb2.RequestEvent) -> None:
    parts.audit.write(_record(parts, request.id, event), progress.place, traceparent=request.traceparent)
    tenants.count(event, parts.clock.monotonic())
    log.debug(
        "request",
        trace=request.traceparent,
        request_id=event.request_id,
        tenant=event.tenant,
        model=event.model,
        model_version=event.model_version,
        operation=event.operation,
        outcome=event.outcome,
        reason=event.reason,
        seconds=round(parts.clock.monotonic() - request.arrived, 4),
        first_text_after=round(to_seconds(event.time_to_first_token), 4),
        prompt_tokens=event.prompt_tokens,
        completion_tokens=event.completion_tokens,
        worker=event.worker,
    )


def _record(parts: Parts, record_id: str, event: audit_pb2.RequestEvent) -> audit_pb2.Record:
    source = f"{parts.settings.service}/{parts.settings.instance}"
    return audit_pb2.Record(id=record_id, time=to_timestamp(parts.clock.time()), source=source, request=event)


def _would_get(parts: Parts, request: Request) -> Route | None:
    """What a request would have got that was refused before it had a route; None when that is nothing."""
    try:
        return parts.catalog.resolve(request.question(parts.catalog, request.spec.model))
    except WeirError:
        return None


def _describe(request: Request, event: audit_pb2.RequestEvent) -> None:
    trace = request.span
    if trace.recording:
        trace.set("gen_ai.operation.name", event.operation)
        trace.set("gen_ai.request.model", event.model)
        trace.set("weir.tenant", event.tenant)
        trace.set("weir.request_id", event.request_id)


def _end_span(request: Request, event: audit_pb2.RequestEvent, end: End) -> None:
    trace = request.span
    if not trace.recording:
        return
    _describe(request, event)
    trace.set("gen_ai.response.model", event.model_version)
    trace.set("gen_ai.response.finish_reasons", [finish.label for finish in end.choices])
    trace.set("gen_ai.usage.input_tokens", event.prompt_tokens)
    trace.set("gen_ai.usage.output_tokens", event.completion_tokens)
    trace.set("weir.simulated", event.simulated)
    trace.end(end.error_reason if end.finish is Finish.ERROR else "")


def _observe(operation: str, accepted: Accepted, end: End, trace_id: str) -> None:
    """Count a request that ran; `trace_id` where it is traced."""
    children = metrics.model_metrics(operation, accepted.model_version, accepted.zone)
    breakdown = end.breakdown
    children.duration.observe(breakdown.total, trace_id)
    if breakdown.time_to_first_token:
        children.ttft.observe(breakdown.time_to_first_token, trace_id)
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
