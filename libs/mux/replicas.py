"""Streams to the replicas of a service beside the one that decides, for what every replica must hear."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator

from libs.mux.client import MuxClient


class Replicas:
    """One stream per replica, opened and closed as `follow` says. Not thread-safe: one event loop."""

    def __init__(self, open_link: Callable[[str], MuxClient]) -> None:
        """`open_link` makes the client for an address, "host:port"; it is run here."""
        self._open_link = open_link
        self._links: dict[tuple[str, str], tuple[MuxClient, asyncio.Task[None]]] = {}

    def follow(self, wanted: Collection[tuple[str, str]], group: asyncio.TaskGroup) -> None:
        """Streams to these (instance, address) from now on and to no others; `group` runs them."""
        for key in self._links.keys() - set(wanted):
            self._links.pop(key)[1].cancel()
        for key in wanted:
            if key not in self._links:
                link = self._open_link(key[1])
                self._links[key] = link, group.create_task(link.run(), name=f"replica.{key[0]}")

    def __iter__(self) -> Iterator[MuxClient]:
        """All streams, open or not."""
        return iter([link for link, _ in self._links.values()])
