"""Who owns a tenant: the replica where the mesh's ring hash takes a stream with the tenant's shard in its header."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from libs.mux import MuxClient
from libs.sharding import shard_of
from services.ratelimit.links import Shards


class Owners:
    """One stream per shard to its owner, which may be this replica; there are none while it is alone.

    :param instance: this replica.
    :param open_shards: one client per shard, all on one channel.
    """

    def __init__(self, *, instance: str, open_shards: Callable[[], Shards]) -> None:
        self._instance = instance
        self._open_shards = open_shards
        self._links: tuple[MuxClient, ...] = ()
        self._alone = True
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Keeps the streams open until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.Event().wait()

    def update(self, others: int) -> None:
        """There are so many other replicas. Call while `run` runs."""
        self._alone = others == 0
        if not self._alone and not self._links and self._group is not None:
            shards = self._open_shards()
            self._group.create_task(shards.run(), name="owners")
            self._links = shards.muxes

    def link(self, tenant: str) -> MuxClient | None:
        """The stream to the tenant's owner; None when that is this replica or nobody can be reached."""
        if self._alone or not self._links:
            return None
        mux = self._links[shard_of(tenant, len(self._links))]
        return mux if mux.connected and mux.instance != self._instance else None

    def owns(self, tenant: str) -> bool:
        """This replica speaks for the tenant. Nobody does while its owner cannot be reached from here."""
        if self._alone:
            return True
        mux = self._links[shard_of(tenant, len(self._links))] if self._links else None
        return mux is not None and mux.connected and mux.instance == self._instance
