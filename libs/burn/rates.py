"""Burn rates over windows, alerts, and the budget that is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from libs.burn.tally import Counted, Tally

PERIOD = 30 * 86400.0
"""Seconds over which a budget is meant: 99.9% are 43.2 minutes of nothing but errors in thirty days."""
MIN_EVENTS = 10
"""Events below which a window says nothing: one error among three requests is no incident."""
MIN_BAD = 2
"""Bad events below which it does not either: with little traffic one is a large share, and nothing that goes on."""

Severity = Literal["page", "ticket"]


@dataclass(frozen=True, slots=True)
class Window:
    """A pair of windows and the burn rate from which both alert. Times in seconds."""

    long: float
    short: float
    factor: float
    """1 uses up the budget exactly in `PERIOD`."""
    severity: Severity

    @property
    def patient(self) -> bool:
        """It alerts only where events were counted as long ago as the short window is long. Minutes of a young service
        say nothing of days; what cannot wait for hours is a matter of the windows that page."""
        return self.severity == "ticket"


WINDOWS = (
    Window(3600, 300, 14.4, "page"),  # 2% of the budget in an hour
    Window(6 * 3600, 1800, 6, "page"),  # 5% in six hours
    Window(86400, 7200, 3, "ticket"),  # 10% in a day
    Window(3 * 86400, 6 * 3600, 1, "ticket"),  # 10% in three days
)
"""The pairs of the SRE workbook's table 5-8, with its second ticket of three times in a day."""


@dataclass(frozen=True, slots=True)
class Burn:
    """What one pair of windows says."""

    window: Window
    long: float
    """Burn rate over the long window; 0 without events."""
    short: float
    """Likewise, over the short one."""
    fires: bool


def scaled(windows: Iterable[Window], scale: float, factor: float = 1.0) -> tuple[Window, ...]:
    """The windows, `scale` times as long, with `factor` times the thresholds."""
    return tuple(Window(each.long * scale, each.short * scale, each.factor * factor, each.severity) for each in windows)


def burn_rate(counted: Counted, target: float) -> float:
    """How many times as fast as allowed the budget burns: the share of bad events over the allowed share.

    `target` is the objective, such as 0.999. Without events 0. An objective of 1 allows nothing: any bad event is
    infinitely fast.
    """
    if not counted.bad:
        return 0.0
    allowed = 1.0 - target
    return counted.bad / counted.total / allowed if allowed > 0 else float("inf")


def burns(
    tally: Tally,
    target: float,
    now: float,
    *,
    windows: Sequence[Window] = WINDOWS,
    min_events: int = MIN_EVENTS,
) -> tuple[Burn, ...]:
    """What each pair of windows says at `now` (Unix seconds). A pair fires when both of its windows have `min_events`,
    `MIN_BAD` of them bad, and burn faster than its factor; one for tickets also needs events from before its short
    window."""
    said = []
    for window in windows:
        long, short = tally.count(window.long, now), tally.count(window.short, now)
        rates = burn_rate(long, target), burn_rate(short, target)
        enough = min(long.total, short.total) >= min_events and min(long.bad, short.bad) >= MIN_BAD
        known = not window.patient or (tally.since is not None and tally.since <= now - window.short)
        said.append(Burn(window, *rates, fires=enough and known and min(rates) > window.factor))
    return tuple(said)


def alert_of(said: Iterable[Burn]) -> Severity | None:
    """The most urgent alert that fires."""
    severities = {burn.window.severity for burn in said if burn.fires}
    return "page" if "page" in severities else "ticket" if severities else None


def consumed(tally: Tally, target: float, now: float, *, period: float = PERIOD) -> float:
    """The share of the period's budget that is used up; 1 or more is exhausted.

    Of traffic younger than the period, the rest of the period is taken to be as busy and without errors: an hour of
    nothing but errors is an hour of the budget's 43.2 minutes, not a thousand times all of it.
    """
    counted = tally.count(period, now)
    if not counted.bad or tally.since is None:
        return 0.0
    covered = min(period, max(now - tally.since, 1.0))
    return burn_rate(counted, target) * covered / period
