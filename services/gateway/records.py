"""What a request leaves behind: its audit record and its metrics."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf import timestamp_pb2
from weir.audit.v1 import audit_pb2
from weir.safety.v1 import safety_pb2

from libs.deadlines import to_duration
from libs.errors import WeirError
from services.gateway import metrics
from services.gateway.policy.events import Accepted, Breakdown, End, Finish
from services.gateway.policy.spec import Identity, Spec
from services.gateway.refusals import outcome_of


def completed(
    *,
    now: float,
    source: str,
    identity: Identity,
    spec: Spec,
    model: str,
    accepted: Accepted,
    end: End,
    worker: str,
    training: bool,
    policies: Sequence[str],
) -> audit_pb2.Record:
    """The record of a request that ran. `model` is its name as `Catalog.told` has it."""
    event = audit_pb2.RequestEvent(
        request_id=accepted.request_id,
        tenant=identity.tenant,
        key_id=identity.key_id,
        model=model,
        model_version=accepted.model_version,
        arm=accepted.arm,
        operation=spec.operation,
        outcome=end.finish.label,
        reason=end.error_reason,
        prompt_tokens=end.usage.prompt_tokens,
        completion_tokens=end.usage.completion_tokens,
        cached_prompt_tokens=end.usage.cached_prompt_tokens,
        duration=to_duration(end.breakdown.total),
        time_to_first_token=to_duration(end.breakdown.time_to_first_token),
        worker=worker,
        zone=accepted.zone,
        simulated=accepted.simulated,
        degraded=end.degraded,
        trace_id=accepted.trace_id,
        training_allowed=training,
        safety_policies=policies,
    )
    return audit_pb2.Record(id=accepted.request_id, time=_timestamp(now), source=source, request=event)


def rejected(
    *,
    now: float,
    source: str,
    identity: Identity,
    spec: Spec,
    model: str,
    request_id: str,
    error: WeirError,
    trace_id: str,
    policies: Sequence[str],
) -> audit_pb2.Record:
    """The record of a request that was refused before it ran. `model` is its name as `Catalog.told` has it."""
    event = audit_pb2.RequestEvent(
        request_id=request_id,
        tenant=identity.tenant,
        key_id=identity.key_id,
        model=model,
        operation=spec.operation,
        outcome=outcome_of(error),
        reason=error.reason.name,
        trace_id=trace_id,
        safety_policies=policies,
    )
    return audit_pb2.Record(id=request_id, time=_timestamp(now), source=source, request=event)


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


def observe(operation: str, accepted: Accepted, end: End) -> None:
    """Count a request that ran."""
    children = metrics.model_metrics(operation, accepted.model_version)
    breakdown: Breakdown = end.breakdown
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
