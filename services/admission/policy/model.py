"""The values that admission decides about. Times are monotonic seconds of one clock."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


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
    """Every way in which a request leaves admission; a closed set. REJECTED_* never queued, EVICTED_* did;
    NO_WORKERS is an outage, met on arrival or while waiting.

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
    NO_WORKERS = "no_workers"
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
    owner: str = ""  # the gateway that holds it, and which life of it
    ttft_by: float = math.inf  # a first token later than this misses the declared objective
    prefix_hashes: tuple[int, ...] = ()  # chained, of the prompt's blocks of `prefix_block` tokens
    prefix_block: int = 0
    resumed_tokens: int = 0  # of the prompt, generated before an interruption
    kv_share: float = 0.0  # most of the pool's KV blocks that the tenant may hold; 0: all
    version_share: float = 0.0  # likewise, the model version
    credit: bool = False  # nobody's: room for one request that may come, which these are the caps of

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
    takes_credits: bool = False  # takes grants that name no request


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
    earlier: tuple[int, int] | None = None
    """Blocks, used yet or not, and sequences of what runs under a former owner's grant, or none; None: not told."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The request may run on `worker`; its share there is held until it is released."""

    request: Request
    worker: str
    waited: float = 0.0
    pressure: float = 0.0  # predicted wait of the next such request as a share of what it may wait; 0: nobody waits
    first_token: float = 0.0  # predicted, seconds from the admission on
    overtook: tuple[str, ...] = ()  # tenants of its class before it in order, who could not use the worker, or too late


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
