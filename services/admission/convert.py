"""weir.admission.v1 ⇄ the policy's values."""

from __future__ import annotations

import math

from weir.admission.v1 import admission_pb2 as pb
from weir.registry.v1 import registry_pb2

from libs.deadlines import to_duration, to_seconds
from libs.errors import Reason, WeirError
from services.admission.policy.edge_shedding import TenantLevel
from services.admission.policy.model import Granted, QueueClass, Refused, Report, Request, WorkerSpec
from services.admission.policy.pool import Pool
from services.admission.policy.refusals import MIN_RETRY_AFTER
from services.admission.policy.worker import Worker
from services.admission.worker_session import WorkerSession

_MAX_HASHES = 64  # as the proto says
_LEAST_WEIGHT, _MOST_WEIGHT = 1e-3, 1e6  # beyond, a request's cost over it would be lost in a counter, or fill it
_MAX_RATE = 1e9  # prompt tokens per second
_MAX_STEP = 3600.0  # seconds
_MAX_ID = 256  # characters; ids are echoed in messages, logs and grants

# Lookup by number is several times faster than calling the enum, and this runs once per request.
_CLASSES = {0: QueueClass.FREE, **{int(each): each for each in QueueClass}}


def to_request(admit: pb.Admit, *, deadline: float, owner: str, now: float) -> Request:
    """The request asked for; `deadline` and `now` in monotonic seconds, `owner` is who asks (`Session.caller`).

    :raises WeirError: INVALID_REQUEST naming the field.
    """
    request_id, tenant, weight = admit.request_id, admit.tenant, admit.weight or 1.0
    if not 0 < len(request_id) <= _MAX_ID:
        raise _invalid("request_id")
    if not 0 < len(tenant) <= _MAX_ID:
        raise _invalid("tenant")
    if not _LEAST_WEIGHT <= weight <= _MOST_WEIGHT:
        if not 0.0 < weight < math.inf:
            raise _invalid("weight")
        weight = min(_MOST_WEIGHT, max(_LEAST_WEIGHT, weight))
    queue_class = _CLASSES.get(admit.queue_class)
    if queue_class is None:
        raise _invalid("queue_class")
    if not admit.model_version:
        raise _invalid("model_version")
    if not admit.pool:
        raise _invalid("pool")
    if admit.prompt_tokens == 0:
        raise _invalid("prompt_tokens")
    if admit.choices == 0:
        raise _invalid("choices")
    if not 0.0 <= admit.kv_share <= 1.0:
        raise _invalid("kv_share")
    if not 0.0 <= admit.version_share <= 1.0:
        raise _invalid("version_share")
    if admit.prefix_hashes and not admit.prefix_block:
        raise _invalid("prefix_block")
    if admit.resumed_tokens >= admit.prompt_tokens:
        raise _invalid("resumed_tokens")
    ttft_by = math.inf
    if admit.HasField("ttft_target"):
        target = to_seconds(admit.ttft_target)
        if target <= 0.0:
            raise _invalid("ttft_target")
        ttft_by = now + target
    return Request(
        request_id,
        tenant,
        admit.model_version,
        admit.prompt_tokens,
        admit.max_output_tokens,
        admit.choices,
        deadline,
        queue_class,
        weight,
        tuple(admit.zones),
        frozenset(admit.exclude_workers),
        owner,
        ttft_by,
        tuple(admit.prefix_hashes[:_MAX_HASHES]),
        admit.prefix_block,
        admit.resumed_tokens,
        admit.kv_share,
        admit.version_share,
    )


def to_spec(hello: pb.WorkerHello) -> WorkerSpec:
    """The worker that introduces itself.

    :raises WeirError: INVALID_REQUEST naming the field.
    """
    for name in ("worker", "address", "pool", "block_size", "total_blocks", "max_running", "max_context"):
        if not getattr(hello, name):
            raise _invalid(name)
    return WorkerSpec(
        worker=hello.worker,
        address=hello.address,
        zone=hello.zone,
        model_versions=frozenset(hello.model_versions),
        block_size=hello.block_size,
        total_blocks=hello.total_blocks,
        max_running=hello.max_running,
        max_context=hello.max_context,
        simulated=hello.simulated,
        engine=hello.engine,
        preemptive=hello.preemptive,
        holds_shares=hello.holds_shares,
        takes_credits=hello.takes_credits,
    )


def to_report(report: pb.CapacityReport) -> Report:
    """The load a worker tells; rates that cannot be count as unknown."""
    step, rate = to_seconds(report.decode_step), report.prefill_tokens_per_second
    return Report(
        report.free_blocks,
        report.running,
        report.waiting,
        report.queued_prefill_tokens,
        report.draining,
        step if 0.0 < step <= _MAX_STEP else 0.0,
        rate if 1.0 / _MAX_STEP <= rate <= _MAX_RATE else 0.0,
        frozenset(report.resident_models) if report.resident_models else None,
        tuple((each.request_id, each.output_tokens) for each in report.progress) if report.progress else (),
        (report.earlier_blocks, report.earlier_sequences) if report.epoch else None,
    )


def worker_state(session: WorkerSession, worker: Worker | None, now: float) -> pb.WorkerState:
    """What an operator is shown of a worker; without `report` and its age before the first one, and with nothing held
    where another process owns the pool (`worker` is None)."""
    report = session.report
    state = pb.WorkerState(hello=session.hello, report=report, draining=report is not None and report.draining)
    if worker is not None:
        state.held_sequences, state.held_blocks = worker.held_sequences, worker.held_blocks
        state.draining |= worker.draining
    if report is not None:
        state.report_age.CopyFrom(to_duration(max(0.0, now - session.heard)))
    return state


def granted(signed: pb.SignedGrant, spec: WorkerSpec, answer: Granted) -> pb.AdmissionReply:
    """The reply that gives a worker."""
    reply = pb.AdmissionReply()
    _fill(reply.granted, signed, spec, answer)
    return reply


def credit(
    signed: pb.SignedGrant, spec: WorkerSpec, answer: Granted, *, lifetime: float, indifferent: int
) -> pb.Credit:
    """A credit, good for `lifetime` seconds; so many tokens of a prompt may as well be cached elsewhere."""
    request = answer.request
    given = pb.Credit(
        id=request.request_id,
        prompt_tokens=request.prompt_tokens,
        max_output_tokens=request.max_output_tokens,
        lifetime=to_duration(lifetime),
        indifferent_tokens=indifferent,
    )
    _fill(given.granted, signed, spec, answer)
    return given


def used(answer: Granted) -> pb.AdmissionReply:
    """The reply to a question for a request that runs on a credit already."""
    reply = pb.AdmissionReply()
    reply.granted.worker = answer.worker
    return reply


def _fill(result: pb.Granted, signed: pb.SignedGrant, spec: WorkerSpec, answer: Granted) -> None:
    result.grant.CopyFrom(signed)
    result.worker = spec.worker
    result.address = spec.address
    result.zone = spec.zone
    result.simulated = spec.simulated
    if answer.waited > 0.0:
        result.queue_wait.CopyFrom(to_duration(answer.waited))
    if answer.pressure > 0.0:
        result.pressure = answer.pressure
    if answer.first_token > 0.0:
        result.predicted_first_token.CopyFrom(to_duration(answer.first_token))


def rejected(refused: Refused) -> pb.AdmissionReply:
    """The reply that refuses or evicts."""
    error = WeirError(
        Reason[refused.outcome.name], refused.message, limit=refused.limit, retry_after=refused.retry_after
    )
    return pb.AdmissionReply(rejected=error.to_rejection())


def pool_level(
    pool: Pool, tenants: tuple[TenantLevel, ...], instance: str, epoch: int, now: float, wall: float
) -> registry_pb2.PoolLevel:
    """How overloaded a pool is, for the registry; `epoch` is the term of its owner, `now` in monotonic seconds, `wall`
    in seconds since 1970."""
    level = registry_pb2.PoolLevel(pool=pool.name, admission=instance, epoch=epoch)
    level.at.FromMilliseconds(round(wall * 1000))
    for queue_class, queue in pool.backlog.queues.items():
        wait = pool.estimates.class_wait(queue_class, pool.backlog, pool.fleet, now)
        level.classes.add(queue_class=queue_class.name.lower(), wait=to_duration(wait), queued=len(queue))
    for tenant in tenants:
        level.tenants.add(
            tenant=tenant.tenant, shed=tenant.shed, retry_after=to_duration(max(MIN_RETRY_AFTER, tenant.retry_after))
        )
    return level


def released(known: bool) -> pb.AdmissionReply:
    """The reply to Release."""
    reply = pb.AdmissionReply()
    reply.released.SetInParent()
    reply.released.known = known
    return reply


def _invalid(field: str) -> WeirError:
    return WeirError(Reason.INVALID_REQUEST, f"{field} is missing or out of range.", limit=field)
