"""The bounds and constants that admission decides by, declared once: the table `limits` of its settings."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from services.admission.policy.model import QueueClass, Request

_TTLS = {queue_class: f"ttl_{queue_class.name.lower()}" for queue_class in QueueClass}


class Placement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a worker is chosen among those that fit; see placement.py for the formula."""

    zone_spill: float = 0.85
    """Utilisation (0 to 1) from which a worker is used only after the next zones' less utilised ones; 1 spills over
    only when the zone is full."""
    prefix_memory: int = 8_192
    """Hashes of prompt blocks remembered per worker, and never more than its KV blocks hold; 0: no affinity."""
    affinity_slack: float = 0.5
    """Seconds of prefill that may wait at a worker beyond the best's for it still to get a request for its prefix."""
    tie_band: float = 0.01
    """Seconds within which scores count as equal; such workers are told apart by the first prefix hash."""
    prefill_rate: float = 8_000.0
    """Prompt tokens per second assumed of a worker that has not told its own."""
    crowding_cost: float = 0.25
    """Seconds that a fully used worker scores worse than an empty one: steps of a fuller batch take longer."""
    absent_model_cost: float = 2.0
    """Seconds that a worker scores worse when it must load the model or adapter first."""

    def __post_init__(self) -> None:
        if not 0 < self.zone_spill <= 1:
            raise ValueError("zone_spill must be above 0 and at most 1")
        if not (0 < self.prefill_rate < math.inf):
            raise ValueError("prefill_rate must be positive")
        seconds = (self.affinity_slack, self.tie_band, self.crowding_cost, self.absent_model_cost)
        if not all(0 <= each < math.inf for each in seconds) or self.prefix_memory < 0:
            raise ValueError("placement's costs and bounds must not be negative")


class Ejection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a worker that fails gets no more work; see outliers.py."""

    failures: int = 5
    """Failures of a worker in a row that eject it."""
    margin: float = 0.3
    """A failure rate this much above the rest of the pool's (0 to 1) ejects too."""
    min_outcomes: float = 20.0
    """Outcomes within the window below which a rate says nothing."""
    window: float = 30.0
    """Seconds after which an outcome counts 1/e in a rate."""
    seconds: float = 5.0
    """The first ejection's length; it doubles with each one that follows soon."""
    max_seconds: float = 300.0
    """The longest."""
    share: float = 0.34
    """Most of a pool's workers that may be out at once, 0 to 1; a pool of two or more may always lose one, never the
    last; 0 ejects none."""
    probes: int = 2
    """Requests at a time for a worker that comes back; as many successes make it a worker like any other."""

    def __post_init__(self) -> None:
        if self.failures < 1 or self.probes < 1 or not 0 <= self.share <= 1 or self.margin <= 0:
            raise ValueError("ejection: failures and probes must be at least 1, share 0 to 1, margin above 0")
        if not (0 < self.window < math.inf and 0 < self.seconds <= self.max_seconds < math.inf):
            raise ValueError("ejection: window and seconds must be positive, max_seconds at least seconds")


class Credits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When grants carry others for requests that have not come yet; see credits.py."""

    most: int = 16
    """Most that one grant carries; 0 gives none: each request is asked for."""
    seconds: float = 1.0
    """How long one may be used."""
    room: float = 0.25
    """Utilisation of a worker (0 to 1) up to which credits are given for it, those before included. Beyond, where a
    request goes is worth asking."""
    share: float = 0.125
    """Most of a worker's sequences, and of its blocks, that credits may hold, 0 to 1."""

    def __post_init__(self) -> None:
        if self.most < 0 or not 0 < self.seconds <= 10 or not (0 <= self.room <= 1 and 0 <= self.share <= 1):
            raise ValueError("credits: most must not be negative, seconds 0 to 10, room and share 0 to 1")


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds and constants of one pool's admission; calibrated by load tests. Durations in seconds."""

    discipline: Literal["fair", "fifo"] = "fair"
    """"fifo" is one bounded queue in order of arrival without classes, fairness, early rejection, shedding and
    preemption, only `max_queued` and the callers' deadlines: what to compare with."""
    reserved_share: float = 0.05
    """Share of the cost granted to a class that those waiting behind it get, so that none starves."""
    burst_seconds: float = 3.0
    """A tenant that had nothing waiting goes first with what it would have got in so many seconds, had it waited: what
    a cluster of requests finds of its share though others flood. Not so batch requests. 0: idleness is no credit."""
    wait_caution: float = 0.5
    """Share of the time until a request's TTFT target that its predicted wait may always take. Beyond, it is refused
    while waits end in vain; near the pool's capacity, where they do not, it may take all of that time."""
    preempt_after: float = 1.0
    """Wait from which a request without a TTFT target may have less urgent work interrupted; with one, half the time
    to it."""
    preempt_interval: float = 0.02
    """Least time between two interruptions in a pool."""
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
    prefill_settle: float = 0.1
    """How long a granted prompt counts as queued prefill beside the reports: the way through gateway and worker."""
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
    credits: Credits = Credits()
    """When gateways get grants ahead of requests."""
    input_cost: float = 1.0
    """Fair-queue cost of a prompt token."""
    output_cost: float = 2.0
    """Fair-queue cost of an output token."""

    def __post_init__(self) -> None:
        if not 0 <= self.output_reserve <= 1:
            raise ValueError("output_reserve must be 0 to 1")
        if not 0 < self.reserved_share < 1:
            raise ValueError("reserved_share must be above 0 and below 1")
        if not 0 < self.wait_caution <= 1:
            raise ValueError("wait_caution must be above 0 and at most 1")
        if not 0 <= self.burst_seconds < math.inf:
            raise ValueError("burst_seconds must not be negative")
        if min(self.preempt_after, self.preempt_interval) < 0:
            raise ValueError("preempt_after and preempt_interval must not be negative")
        if not 0 <= self.shadow_room <= self.shadow_yield <= 1:
            raise ValueError("shadow_room and shadow_yield must be 0 to 1, shadow_yield not below shadow_room")
        if min(self.shadow_queue, self.ttl_shadow, self.shadow_calm) < 0:
            raise ValueError("shadow_queue, ttl_shadow and shadow_calm must not be negative")
        if not 0 <= self.report_fresh < self.report_stale:
            raise ValueError("report_stale must be above report_fresh")

    def ttl(self, queue_class: QueueClass) -> float:
        """The longest wait of a class."""
        ttl: float = getattr(self, _TTLS[queue_class])
        return ttl

    def cost(self, prompt_tokens: int, output_tokens: int) -> float:
        """Cost units of a prompt and of all its output together; never 0, so that fair queuing always advances."""
        return max(1.0, self.input_cost * prompt_tokens + self.output_cost * output_tokens)

    def cost_of(self, request: Request) -> float:
        """The most that the request can cost."""
        return self.real_cost(request, request.max_output_tokens * request.choices)

    def real_cost(self, request: Request, output_tokens: int, cached_prompt_tokens: int = 0) -> float:
        """What the request costs with so many output tokens in all. Of its prompt counts what had to be computed, not
        what its worker had; and prefill that an interruption or a lost worker makes necessary again is not the
        tenant's."""
        computed = 0 if request.resumed_tokens else max(0, request.prompt_tokens - cached_prompt_tokens)
        return self.cost(computed, output_tokens)
