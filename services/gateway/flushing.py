"""Wakes readers of streams: at once while the gateway has time, and many together when it has little."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from services.gateway.policy.flushing import wait_for_company


class Waiting(Protocol):
    """Output whose reader is to be woken."""

    def flush(self) -> None:
        """Wake it now; nothing where it has been woken."""


class Flushing:
    """One per process and event loop."""

    def __init__(
        self,
        *,
        most: float,
        sweep_seconds: float,
        now: float,
        cpu: Callable[[], float] = time.process_time,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """:param most: seconds that any output waits at most; 0: none ever does.
        :param sweep_seconds: after so many seconds `sweep` is called again, if the loop is not late.
        :param now: monotonic seconds.
        :param cpu: seconds that this process has used.
        """
        self.hold = 0.0
        """Seconds that output waits for company at present."""
        self._most = most
        self._sweep_seconds = sweep_seconds
        self._cpu = cpu
        self._call_later = call_later
        self._seen = now, cpu()
        self._waiting: list[Waiting] = []

    def sweep(self, now: float) -> None:
        """Look at how busy this process is (monotonic seconds)."""
        (then, before), self._seen = self._seen, (now, self._cpu())
        elapsed = now - then
        if elapsed > 0:
            busy = (self._seen[1] - before) / elapsed
            self.hold = wait_for_company(busy, elapsed - self._sweep_seconds, self._most)

    def later(self, output: Waiting, most: float) -> None:
        """Wake its reader together with others, within `hold` and within `most` seconds."""
        call_later = self._call_later or asyncio.get_running_loop().call_later
        if most < self.hold:
            call_later(most, output.flush)
            return
        if not self._waiting:
            call_later(self.hold, self._flush)
        self._waiting.append(output)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for output in waiting:
            output.flush()
