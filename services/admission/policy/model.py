"""The values that admission decides about. Times are monotonic seconds of one clock."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from services.admission.policy.tuning import Ejection, Placement


class QueueClass(enum.IntEnum):
    """Served from the first to the last, shed from the last to the first. Numbers as in weir.admission.v1."""

    PAID = 1
    FREE = 2
    OVER_QUOTA = 3
    BATCH = 4
    SHADOW = 5
    """Mirrored copies, which nobody reads. They wait in no queue of these: see shadows.py."""


QUEUED_CLASSES = (QueueClass.PAID, QueueClass.FREE, QueueClass.OVER_QUOTA, QueueClass.BATCH)
"""Classes of requests that somebody waits for: those that wait in the backlog and count in predictions."""


class Outcome(enum.Enum):
    """Every way in which a request leaves admission; a closed set. REJECTED_* never queued, EVICTED_* did.

    The names of refusals equal those of `weir.errors.v1.Reason`; the values are metric labels.
    """

    GRANTED = "granted"
    INVALID_REQUEST = "invalid_request"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    REJECTED_NO_CAPACITY = "rejected_no_capacity"
    REJECTED_QUEUE_FULL = "rejected_queue_full"
    REJECTED_DEADLINE = "rejected_deadline"
    EVICTED_TTL = "evicted_ttl"
    EVICTED_DEADLINE = "evicted_deadline"
    EVICTED_SHED = "evicted_shed"
    DRAINING = "draining"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a worker. Token counts are caps: what the request may use at most."""

    request_id: str
    tenant: str
    model_version: str
    prompt_tokens: int
    max_output_tokens: int  # per choice
    choices: int
    deadline: float
    queue_class: QueueClass = QueueClass.FREE
    weight: float = 1.0
    zones: tuple[str, ...] = ()  # best first; empty allows all
    excluded: frozenset[str] = frozenset()  # workers that failed this request already
    owner: str = ""  # the gateway instance that holds it
    ttft_by: float = math.inf  # a first token later than this misses the declared objective
    prefix_hashes: tuple[int, ...] = ()  # chained, of the prompt's blocks of `prefix_block` tokens
    prefix_block: int = 0
    resumed_tokens: int = 0  # of the prompt, generated before an interruption
    kv_share: float = 0.0  # most of the pool's KV blocks that the tenant may hold; 0: all
    version_share: float = 0.0  # likewise, the model version

    def blocks(self, block_size: int, output_share: float = 1.0) -> int:
        """KV blocks it needs for its prompt and `output_share` of the longest output that it may come to. Every choice
        counts in full: prefix sharing between choices is the engine's gain, not a promise."""
        output = math.ceil(self.max_output_tokens * output_share)
        return self.choices * -(-(self.prompt_tokens + output) // block_size)

    def covers(self, other: Request) -> bool:
        """Would a grant for this request do for the other, too?"""
        return (
            self.model_version == other.model_version
            and self.prompt_tokens >= other.prompt_tokens
            and self.max_output_tokens >= other.max_output_tokens
            and self.choices >= other.choices
        )


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker as it introduced itself."""

    worker: str
    address: str
    zone: str
    model_versions: frozenset[str]
    block_size: int
    total_blocks: int
    max_running: int
    max_context: int
    simulated: bool = False
    engine: str = ""
    preemptive: bool = False  # preempts and resumes when blocks run out
    holds_shares: bool = False  # keeps each tenant within its `kv_share` while others want the room


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's load as it told."""

    free_blocks: int
    running: int = 0
    waiting: int = 0
    queued_prefill_tokens: int = 0
    draining: bool = False
    decode_step: float = 0.0  # seconds; 0 until there was one
    prefill_tokens_per_second: float = 0.0  # 0 until there were some
    resident: frozenset[str] | None = None  # models and adapters in memory; None: all that it serves
    progress: tuple[tuple[str, int], ...] = ()  # requests that have come far, and their output tokens per choice


@dataclass(frozen=True, slots=True)
class Granted:
    """The request may run on `worker`; its share there is held until it is released."""

    request: Request
    worker: str
    waited: float = 0.0
    pressure: float = 0.0  # predicted wait of the next such request as a share of what it may wait; 0: nobody waits
    first_token: float = 0.0  # predicted, seconds from the admission on


@dataclass(frozen=True, slots=True)
class Refused:
    """The request will not run. `retry_after` in seconds; None when coming back does not help."""

    request: Request
    outcome: Outcome
    message: str
    limit: str = ""
    retry_after: float | None = None
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits; its outcome comes later as an event."""

    request: Request


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The worker is to interrupt these requests, so that more urgent ones find room. Their gateways ask anew."""

    worker: str
    request_ids: tuple[str, ...]


Event = Granted | Refused | Interrupt
"""The one outcome of a queued request, or what a worker is to be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds and constants of one pool's admission; calibrated by load tests, set in config.py."""

    discipline: str = "fair"
    """"fair", or "fifo": one bounded queue in order of arrival without classes, fairness, early rejection, shedding,
    TTLs, TTFT targets and preemption, to compare with."""
    reserved_share: float = 0.05
    """Share of the cost granted to a class that those waiting behind it get, so that none starves."""
    wait_caution: float = 0.5
    """Share of the time until a TTFT target or deadline that the predicted wait may take; beyond, a newcomer is
    refused."""
    preempt_after: float = 1.0
    """Wait from which a request without a TTFT target may have less urgent work interrupted; with one, half the time
    to it."""
    preempt_interval: float = 0.02
    """Least time between two interruptions in a pool."""
    max_per_tenant: int = 256
    """Most requests of one tenant that may wait in one class."""
    max_per_class: int = 2048
    """Most requests that may wait in one class."""
    max_queued: int = 4096
    """Most requests that may wait in all; beyond, the lowest class is shed for a higher one."""
    ttl: dict[QueueClass, float] = field(
        default_factory=lambda: {
            QueueClass.PAID: 30.0,
            QueueClass.FREE: 20.0,
            QueueClass.OVER_QUOTA: 10.0,
            QueueClass.BATCH: 600.0,
            QueueClass.SHADOW: 2.0,
        }
    )
    """Longest wait per class."""
    shadow_room: float = 0.5
    """Utilisation of a worker (0 to 1) up to which shadow requests may start there, they themselves included."""
    shadow_yield: float = 0.75
    """Utilisation from which those that run there are interrupted; above `shadow_room`, below `zone_spill`."""
    shadow_calm: float = 1.0
    """Seconds for which nobody must have waited in the pool before a shadow request may start."""
    shadow_queue: int = 32
    """Most shadow requests that may wait."""
    max_queued_prefill: int = 16_384
    """Prompt tokens that may wait for prefill on one worker; more wait here, where their order is fair. A worker
    without any takes one prompt of whatever length."""
    max_prefill_wait: float = math.inf
    """Seconds that the prompts before a new one may take there, for the same reason."""
    output_reserve: float = 0.5
    """Share of a request's longest output for which blocks are kept on a worker that preempts and resumes; one that
    does not is never promised more than it holds."""
    run_ahead: int = 0
    """Sequences beyond `max_running` that a worker may hold, to cover the way from a finished sequence to the next
    grant."""
    max_bypass: int = 16
    """How often a request that does not fit may be overtaken before the worker it needs is kept for it."""
    return_margin: float = 0.05
    """A request leaves the queue this long before its deadline, so that the answer still arrives in time."""
    absence_grace: float = 5.0
    """How long requests queue for a version whose last worker has gone (or since admission started)."""
    foreign_ttl: float = 60.0
    """How long work that admission did not grant, or no longer knows the end of, is assumed to run."""
    release_grace: float = 5.0
    """How long after its deadline an unreleased request still counts in full."""
    prefill_settle: float = 0.1
    """How long a granted prompt counts as queued prefill beside the reports: the way through gateway and worker."""
    report_fresh: float = math.inf
    """Up to this age a report counts in full; from then on the room that it tells of shrinks, linearly, …"""
    report_stale: float = math.inf
    """… to nothing at this age."""
    preempt_grace: float = 2.0
    """How long what was asked to be interrupted counts as on its way out."""
    placement: Placement = field(default_factory=Placement)
    """How workers are scored."""
    ejection: Ejection = field(default_factory=Ejection)
    """When workers that fail get no more work."""
    input_cost: float = 1.0
    """Cost units per prompt token."""
    output_cost: float = 2.0
    """Cost units per output token: decoding costs more than prefill (VTC, arXiv 2401.00588, uses 1 and 2)."""

    def cost(self, prompt_tokens: int, output_tokens: int) -> float:
        """Cost units of a prompt and of all its output together; never 0, so that fair queuing always advances."""
        return max(1.0, self.input_cost * prompt_tokens + self.output_cost * output_tokens)

    def cost_of(self, request: Request) -> float:
        """The most that the request can cost."""
        return self.real_cost(request, request.max_output_tokens * request.choices)

    def real_cost(self, request: Request, output_tokens: int) -> float:
        """What the request costs with so many output tokens in all. Prefill that an interruption or a lost worker
        makes necessary again is not the tenant's."""
        return self.cost(0 if request.resumed_tokens else request.prompt_tokens, output_tokens)
