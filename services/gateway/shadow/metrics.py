"""What became of mirrored requests. Labels are closed sets."""

from __future__ import annotations

import enum

from prometheus_client import Counter, Gauge, Histogram


class Fate(enum.Enum):
    """Every way in which a mirrored request ends; the values are metric labels."""

    ANSWERED = "answered"
    QUEUE_FULL = "queue_full"
    """Dropped here: too many wait."""
    QUOTA = "quota"
    """The quota of mirrored traffic is used up, or nobody could be asked for it."""
    REFUSED = "refused"
    """Admission had no room to spare, or no worker."""
    INTERRUPTED = "interrupted"
    """It made way for a user's request."""
    DEADLINE = "deadline"
    WITHDRAWN = "withdrawn"
    """Its rollout's shadow phase was over, or the kill switch set."""
    DRAINED = "drained"
    """The gateway shut down."""
    ERROR = "error"


class Verdict(enum.Enum):
    """What came of comparing; the values are metric labels."""

    SAME = "same"
    DIFFERENT = "different"
    UNCOUNTED = "uncounted"
    """Compared, but chance or another tokenizer may have made the difference."""
    INCOMPARABLE = "incomparable"
    """One of the two answers was cut short."""


_FATES = Counter("weir_gateway_shadow_total", "Mirrored requests by what became of them.", ["outcome"])
_VERDICTS = Counter("weir_gateway_shadow_compared_total", "Answers of mirrored requests, compared.", ["verdict"])
QUEUED = Gauge("weir_gateway_shadow_queue_depth", "Mirrored requests that wait for their turn.")
RUNNING = Gauge("weir_gateway_shadow_running", "Mirrored requests that are being answered.")
FIRST_DIFFERENCE = Histogram(
    "weir_gateway_shadow_first_difference",
    "Position of the first token that differs, of answers that do.",
    buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
)

_OF_FATE = {fate: _FATES.labels(fate.value) for fate in Fate}
_OF_VERDICT = {verdict: _VERDICTS.labels(verdict.value) for verdict in Verdict}


def ended(fate: Fate) -> None:
    """A mirrored request is over."""
    _OF_FATE[fate].inc()


def compared(verdict: Verdict) -> None:
    """Two answers were looked at."""
    _OF_VERDICT[verdict].inc()
