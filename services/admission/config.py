"""Admission's settings: the only place that knows the defaults of its bounds."""

from __future__ import annotations

from typing import Literal

from libs.config import ServiceSettings
from services.admission.policy.model import Limits, QueueClass
from services.admission.policy.tuning import Ejection, Placement


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations in seconds; token and block counts as in `weir.admission.v1`."""

    service: str = "admission"
    instance: str = "admission-0"

    grant_lifetime: float = 5.0
    """How long a worker accepts a grant: the way from here through the gateway to the worker, with room."""
    worker_heartbeat: float = 3.0
    """The longest silence of a worker before it counts as lost. A broken stream counts at once."""
    gateway_grace: float = 5.0
    """How long a gateway that lost its stream may take to come back before its shares are given up."""
    tick_seconds: float = 0.025
    """How often queued requests, workers and gateways are looked at for passed deadlines."""
    max_in_flight: int = 4096
    """Calls that one gateway may have open, waiting ones included."""

    discipline: Literal["fair", "fifo"] = "fair"
    """"fifo" is one bounded queue in order of arrival without classes, fairness, early rejection, shedding and
    preemption, only `max_queued` and the callers' deadlines: what to compare with."""
    reserved_share: float = 0.05
    """Share of the cost granted to a class that those waiting behind it get, so that none starves."""
    wait_caution: float = 0.5
    """Share of the time until a request's TTFT target that its predicted wait may take; beyond, it is refused."""
    preempt_after: float = 1.0
    """Wait from which a request without a TTFT target may have less urgent work interrupted; with one, half the time
    to it."""
    preempt_interval: float = 0.02
    """Least time between two interruptions in a pool."""
    level_ttl: float = 3.0
    """How long the level that the edge sheds by outlives this process, or its way to etcd."""
    settle_seconds: float = 2.0
    """How long the set of admission processes must rest before streams are sent to where the ring says."""
    rebalance_seconds: float = 60.0
    """While there are several: how often streams are sent there anyway, in case one strayed over a network fault."""

    max_per_tenant: int = 256
    """Most requests of one tenant that may wait in one class of one pool."""
    max_per_class: int = 2048
    """Most requests that may wait in one class of one pool."""
    max_queued: int = 4096
    """Most requests that may wait in one pool; beyond, the lowest class is shed."""
    ttl_paid: float = 30.0
    """Longest wait of paid interactive requests."""
    ttl_free: float = 20.0
    """Longest wait of free interactive requests."""
    ttl_over_quota: float = 10.0
    """Longest wait of requests over their quota."""
    ttl_batch: float = 600.0
    """Longest wait of batch requests."""
    ttl_shadow: float = 2.0
    """Longest wait of shadow requests."""
    shadow_calm: float = 1.0
    """Seconds for which nobody must have waited in a pool before a shadow request may start there."""
    shadow_queue: int = 32
    """Most shadow requests that may wait in one pool."""
    shadow_room: float = 0.5
    """Utilisation of a worker up to which shadow requests may start there, they themselves included."""
    shadow_yield: float = 0.75
    """Utilisation of a worker from which the shadow requests there are interrupted; others' work goes first."""
    max_queued_prefill: int = 16_384
    """Prompt tokens that may wait for prefill on one worker; an idle worker takes one prompt of any length."""
    max_prefill_wait: float = 0.25
    """Seconds of prefill that may wait on a worker before a new prompt: longer queues are here, where their order is
    fair and first tokens can be foretold."""
    output_reserve: float = 0.5
    """Share of a request's longest output for which KV blocks are kept on a worker that preempts and resumes
    sequences: few requests use all of max_tokens. Others are never promised more than they hold."""
    run_ahead: int = 0
    """Sequences that a worker is given beyond those it can run, to cover the way to the next grant."""
    max_bypass: int = 16
    """How often a request that fits no worker may be overtaken before a worker is kept for it."""
    absence_grace: float = 5.0
    """How long requests wait for a version whose last worker has gone, and after a start."""
    foreign_ttl: float = 60.0
    """How long work that was not granted by this process is assumed to run."""
    release_grace: float = 5.0
    """How long after its deadline an unreleased request still counts in full."""
    return_margin: float = 0.05
    """How long before its deadline a waiting request is told that it will not be met."""
    report_fresh: float = 1.5
    """Up to this age a worker's report counts in full; workers report at least every third of `worker_heartbeat`."""
    report_stale: float = 3.0
    """Age at which a report tells of no room any more; between the two its room shrinks linearly."""
    preempt_grace: float = 2.0
    """How long a request that was asked to be interrupted counts as on its way out."""
    placement: Placement = Placement()
    """How a worker is chosen."""
    ejection: Ejection = Ejection()
    """When a worker that fails gets no more work."""
    input_cost: float = 1.0
    """Fair-queue cost of a prompt token."""
    output_cost: float = 2.0
    """Fair-queue cost of an output token."""

    def __post_init__(self) -> None:
        """Check what a type cannot say; `libs.config.load` adds the source to the message."""
        super().__post_init__()
        if not 0 <= self.output_reserve <= 1:
            raise ValueError("output_reserve must be 0 to 1")
        if not 0 < self.reserved_share < 1:
            raise ValueError("reserved_share must be above 0 and below 1")
        if not 0 < self.wait_caution <= 1:
            raise ValueError("wait_caution must be above 0 and at most 1")
        if min(self.preempt_after, self.preempt_interval, self.settle_seconds) < 0:
            raise ValueError("preempt_after, preempt_interval and settle_seconds must not be negative")
        if self.level_ttl < 1 or self.rebalance_seconds < 1:
            raise ValueError("level_ttl and rebalance_seconds must be at least 1")
        if not 0 <= self.shadow_room <= self.shadow_yield <= 1:
            raise ValueError("shadow_room and shadow_yield must be 0 to 1, shadow_yield not below shadow_room")
        if min(self.shadow_queue, self.ttl_shadow, self.shadow_calm) < 0:
            raise ValueError("shadow_queue, ttl_shadow and shadow_calm must not be negative")
        if not 0 <= self.report_fresh < self.report_stale:
            raise ValueError("report_stale must be above report_fresh")

    def limits(self) -> Limits:
        """The policy's part."""
        return Limits(
            discipline=self.discipline,
            reserved_share=self.reserved_share,
            wait_caution=self.wait_caution,
            preempt_after=self.preempt_after,
            preempt_interval=self.preempt_interval,
            max_per_tenant=self.max_per_tenant,
            max_per_class=self.max_per_class,
            max_queued=self.max_queued,
            ttl={
                QueueClass.PAID: self.ttl_paid,
                QueueClass.FREE: self.ttl_free,
                QueueClass.OVER_QUOTA: self.ttl_over_quota,
                QueueClass.BATCH: self.ttl_batch,
                QueueClass.SHADOW: self.ttl_shadow,
            },
            shadow_room=self.shadow_room,
            shadow_yield=self.shadow_yield,
            shadow_calm=self.shadow_calm,
            shadow_queue=self.shadow_queue,
            max_queued_prefill=self.max_queued_prefill,
            max_prefill_wait=self.max_prefill_wait,
            output_reserve=self.output_reserve,
            run_ahead=self.run_ahead,
            max_bypass=self.max_bypass,
            absence_grace=self.absence_grace,
            foreign_ttl=self.foreign_ttl,
            release_grace=self.release_grace,
            return_margin=self.return_margin,
            report_fresh=self.report_fresh,
            report_stale=self.report_stale,
            preempt_grace=self.preempt_grace,
            placement=self.placement,
            ejection=self.ejection,
            input_cost=self.input_cost,
            output_cost=self.output_cost,
        )
