"""When a client has no stream: for how long, and one line in the log for each time."""

from __future__ import annotations

import grpc

from libs.clock import Clock
from libs.telemetry import get_logger

log = get_logger(__name__)


class Outage:
    """Begins with the client, too: it has no stream yet."""

    __slots__ = ("_clock", "_domain", "_reported", "_since")

    def __init__(self, domain: str, clock: Clock) -> None:
        """`domain` is the service's name."""
        self._domain = domain
        self._clock = clock
        self._since: float | None = clock.monotonic()
        self._reported = False

    @property
    def seconds(self) -> float:
        """Since it began; 0 while there is none."""
        return 0.0 if self._since is None else self._clock.monotonic() - self._since

    def begin(self) -> None:
        """There is no stream any more."""
        if self._since is None:
            self._since = self._clock.monotonic()

    def end(self) -> None:
        """There is one."""
        self._since, self._reported = None, False

    def report(self, error: BaseException | None) -> None:
        """Log what went wrong: once per outage, not once per attempt."""
        if self._reported:
            return
        self._reported = True
        code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__
        log.warning("mux_unreachable", domain=self._domain, error=code)
