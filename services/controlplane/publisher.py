"""The present snapshot and the streams that wait for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from services.controlplane.convert import EMPTY, Encoded


class Publisher:
    """Holds what is served. One per process; used from the event loop only."""

    def __init__(self) -> None:
        self._current = EMPTY
        self._waiting: set[asyncio.Event] = set()
        self.refused: str = ""
        """Why the newest registry state is not served; empty when it is."""

    @property
    def current(self) -> Encoded:
        """What is served now; revision 0 before the first snapshot."""
        return self._current

    def publish(self, encoded: Encoded) -> None:
        """Serve this from now on and wake every stream."""
        self._current = encoded
        self.refused = ""
        for event in self._waiting:
            event.set()

    def revise(self, revision: int) -> None:
        """The same resources hold at a later revision; nobody needs to be told."""
        self._current = replace(self._current, revision=revision)
        self.refused = ""

    @contextmanager
    def subscribed(self, event: asyncio.Event) -> Iterator[None]:
        """Sets the event at every publication while the block runs."""
        self._waiting.add(event)
        try:
            yield
        finally:
            self._waiting.discard(event)
