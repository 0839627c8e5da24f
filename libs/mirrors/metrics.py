"""What became of mirrored requests. Labels are closed sets."""

from __future__ import annotations

import enum

from prometheus_client import Counter, Gauge


class Fate(enum.Enum):
    """Every way in which a mirrored request ends; the values are metric labels."""

    ANSWERED = "answered"
    QUEUE_FULL = "queue_full"
    """Dropped here: too many wait."""
    QUOTA = "quota"
    """The quota of mirrored traffic is used up, or nobody could be asked for it."""
    REFUSED = "refused"
    """There was no room to spare, or no worker."""
    INTERRUPTED = "interrupted"
    """It made way for a user's request."""
    DEADLINE = "deadline"
    WITHDRAWN = "withdrawn"
    """Its rollout's shadow phase was over, or the kill switch set."""
    DRAINED = "drained"
    """The process shut down."""
    ERROR = "error"


class Verdict(enum.Enum):
    """What came of comparing; the values are metric labels."""

    SAME = "same"
    DIFFERENT = "different"
    UNCOUNTED = "uncounted"
    """Compared, but something beside the versions may have made the difference."""
    INCOMPARABLE = "incomparable"
    """One of the two answers was cut short."""


class MirrorMetrics:
    """Of one service's mirrors. One per process."""

    def __init__(self, prefix: str) -> None:
        """`prefix` begins their names: "weir_gateway"."""
        fates = Counter(f"{prefix}_shadow_total", "Mirrored requests by what became of them.", ["outcome"])
        verdicts = Counter(f"{prefix}_shadow_compared_total", "Answers of mirrored requests, compared.", ["verdict"])
        self.queued = Gauge(f"{prefix}_shadow_queue_depth", "Mirrored requests that wait for their turn.")
        self.running = Gauge(f"{prefix}_shadow_running", "Mirrored requests that are being answered.")
        self._fates = {fate: fates.labels(fate.value) for fate in Fate}
        self._verdicts = {verdict: verdicts.labels(verdict.value) for verdict in Verdict}

    def ended(self, fate: Fate) -> None:
        """A mirrored request is over."""
        self._fates[fate].inc()

    def compared(self, verdict: Verdict) -> None:
        """Two answers were looked at."""
        self._verdicts[verdict].inc()
