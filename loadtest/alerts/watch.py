"""When each alert reached Alertmanager, and when it ended there."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

_LOOK = 0.2
"""Seconds between two looks: what a figure is exact to."""


@dataclass(slots=True)
class Firing:
    """From when to when an alert was told; `time.monotonic()` seconds."""

    began: float
    ended: float | None = None


@dataclass(slots=True)
class Watch:
    """Looks at Alertmanager again and again: what it knows is what people are told."""

    address: str
    """Alertmanager's "host:port"."""
    only: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of these alerts those with these labels."""
    firings: dict[str, list[Firing]] = field(default_factory=dict)
    """By alert, in order."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with suppress(OSError, ValueError):
                self.note(await asyncio.to_thread(self._ask), time.monotonic())
            await asyncio.sleep(_LOOK)

    def note(self, firing: Collection[str], now: float) -> None:
        """These alerts are firing now, and no others."""
        for name in firing:
            if not self.firing(name):
                self.firings.setdefault(name, []).append(Firing(now))
        for name, known in self.firings.items():
            if name not in firing and known[-1].ended is None:
                known[-1].ended = now

    def firing(self, name: str) -> bool:
        """Whether it is."""
        known = self.firings.get(name)
        return bool(known) and known[-1].ended is None  # type: ignore[index]

    async def fired(self, name: str, since: float, *, within: float) -> float:
        """When it fired, at `since` or later.

        :raises TimeoutError: it did not, within so many seconds from now.
        """
        async with asyncio.timeout(within):
            while True:
                for each in self.firings.get(name, ()):
                    if each.began >= since:
                        return each.began
                await asyncio.sleep(_LOOK)

    async def quiet(self, names: Collection[str], *, within: float) -> float:
        """Waits until none of these fires; when that was seen.

        :raises TimeoutError: one still does.
        """
        async with asyncio.timeout(within):
            while any(map(self.firing, names)):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(_LOOK)
        return time.monotonic()

    def _ask(self) -> set[str]:
        with urllib.request.urlopen(f"http://{self.address}/api/v2/alerts", timeout=5) as answer:
            return self.names(each["labels"] for each in json.load(answer))

    def names(self, told: Iterable[Mapping[str, str]]) -> set[str]:
        """The alerts that count of those with these labels."""
        return {each["alertname"] for each in told if self.only.get(each["alertname"], {}).items() <= each.items()}
