"""The router's settings."""

from __future__ import annotations

from libs.breaker import BreakerOptions
from libs.config import ServiceSettings


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the router needs beside the common settings. Durations in seconds."""

    service: str = "router"
    instance: str = "router-0"

    max_in_flight: int = 4096
    """Calls that one gateway may have open; all are answered in the tick that reads them."""
    report_seconds: float = 0.5
    """How soon gateways shall report outcomes again."""
    state_lasts: float = 3.0
    """Seconds for which a gateway may resolve by what this router told it last, which is at least every two; 0:
    gateways ask for each request."""
    breaker_window: float = 10.0
    """Outcomes older than this are forgotten."""
    breaker_min_volume: int = 20
    """Fewer outcomes than this in the window never open a breaker."""
    breaker_failure_rate: float = 0.5
    """Share of failures in the window that opens it."""
    breaker_open_for: float = 5.0
    """How long it stays open the first time; doubles with each failed probe."""
    breaker_max_open_for: float = 60.0
    """The longest that it stays open."""
    breaker_probes: int = 5
    """Probes per `breaker_probe_interval` while half-open, and successes needed to close."""
    breaker_probe_interval: float = 1.0
    """See `breaker_probes`."""
    breaker_slow_start: float = 10.0
    """After closing, how long until the zone takes all of its turns again; 0 is at once."""

    def breaker_options(self) -> BreakerOptions:
        """The policy's part.

        :raises ValueError: a value is out of range.
        """
        return BreakerOptions(
            window=self.breaker_window,
            min_volume=self.breaker_min_volume,
            failure_rate=self.breaker_failure_rate,
            open_for=self.breaker_open_for,
            max_open_for=self.breaker_max_open_for,
            probes=self.breaker_probes,
            probe_interval=self.breaker_probe_interval,
            slow_start=self.breaker_slow_start,
        )
