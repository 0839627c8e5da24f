"""A request under way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.admission.policy.model import QueueClass, Request, WorkerSpec
from services.admission.policy.pool import Pool
from simulation.fairness import Grant
from simulation.outcomes import Observed
from simulation.worker import Sequence
from simulation.workload import Arrival

if TYPE_CHECKING:
    from simulation.hosts import Host

CLASSES = {"paid": QueueClass.PAID, "free": QueueClass.FREE, "over_quota": QueueClass.OVER_QUOTA,
           "batch": QueueClass.BATCH}  # fmt: skip


@dataclass(slots=True, eq=False)
class Live:
    """What is known of it on its way."""

    arrival: Arrival
    factor: float  # of this request's delays
    pool: Pool  # of the owner that it asks
    queue_class: QueueClass = field(init=False)
    request: Request | None = None  # as admission has it
    worker: Host | None = None
    sequence: Sequence | None = None
    emitted: int = 0  # tokens of the workers that it was on before
    first_at: float | None = None  # at the client
    granted_at: float = 0.0
    waited: float = 0.0
    waiting: bool = False  # in admission's queue
    reserved: bool = False  # at the limiter
    interrupted: int = 0
    moved: int = 0
    cached: int = 0  # prompt tokens that its worker had
    excluded: frozenset[str] = frozenset()
    expected: float = 0.0  # cost per weight
    real: float = 0.0
    grant: Grant | None = None  # the last
    done: bool = False

    def __post_init__(self) -> None:
        self.queue_class = CLASSES[self.arrival.queue_class]

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.arrival.tenant


def note_committed(observed: Observed, pools: Iterable[Pool], spec: WorkerSpec, lives: Mapping[str, Live]) -> None:
    """How much of a worker's memory all that was granted there will come to need."""
    size, blocks, reserved = spec.block_size, 0, 0
    for pool in pools:
        worker = pool.fleet.workers.get(spec.worker)
        for request_id, held in worker.holds.items() if worker is not None else ():
            live = lives.get(request_id)
            reserved += held.blocks
            if live is not None:
                blocks += -(-(live.arrival.prompt_tokens + live.arrival.output_tokens) // size)
    observed.committed = max(observed.committed, blocks / spec.total_blocks)
    observed.reserved = max(observed.reserved, reserved / spec.total_blocks)
