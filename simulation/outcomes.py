"""What became of every request, and what was observed on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from services.admission.policy.model import QueueClass
from simulation.fairness import Gap
from simulation.workload import Arrival

OK = "ok"


@dataclass(slots=True)
class Outcome:
    """One request and its end. Times in seconds."""

    arrival: Arrival
    queue_class: str
    """What it was served in: quotas may have lowered it."""
    outcome: str
    """"ok", or a reason of weir.errors.v1 without "REASON_"."""
    ttft: float | None
    e2e: float
    delivered: int
    """Output tokens that came."""
    waited: float
    """In admission's queue, in all."""
    retry_after: float | None = None
    interrupted: int = 0
    """How often it was, for more urgent work."""
    moved: int = 0
    """How often its worker was lost."""

    @property
    def itl(self) -> float | None:
        """Mean gap between its tokens."""
        if self.ttft is None or self.delivered < 2:
            return None
        return (self.e2e - self.ttft) / (self.delivered - 1)


@dataclass(slots=True)
class Observed:
    """Everything that a run leaves."""

    outcomes: list[Outcome] = field(default_factory=list)
    gaps: list[tuple[QueueClass, tuple[str, str], Gap]] = field(default_factory=list)
    """By class and the two tenants' names, the services of those that waited at one time."""
    step_gaps: Counter[int] = field(default_factory=Counter)
    """Gaps between tokens by length, in units of 0.1 ms: how many tokens came after so long."""
    events: int = 0
    steps: int = 0
    """Engine steps that the events stand for."""
    busy: float = 0.0
    """Share of the workers' time that was spent in steps, while requests came."""
    preempted: int = 0
    on_credit: int = 0
    """Requests for which nobody was asked, as their gateway had a credit."""
    memory_preemptions: int = 0
    """Sequences that workers computed anew for want of memory."""
    committed: float = 0.0
    """The most that all that was granted on one worker came to need, over its memory. Only where workers preempt or a
    pool had two owners."""
    reserved: float = 0.0
    """The most that admission counted it as, likewise."""
    prompt_tokens: int = 0
    output_tokens: int = 0
