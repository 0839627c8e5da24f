"""Constants of placement, preemption and ejection; tables of their own in admission's settings."""

from __future__ import annotations

import math

import msgspec


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
