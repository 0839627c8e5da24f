"""Streams to the limiter: a tenant's shard says which replica owns it, and one stream carries what goes to a replica.

Each shard has a stream, whose `x-weir-shard` header picks the replica that owns it (ring hash through xDS; a direct
target serves all shards). What is said to one replica travels on one of those that lead there: on sixteen, messages
would leave with a sixteenth of the company.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.mux import Dialer, MuxClient, carrier, give_up_all
from libs.sharding import SHARD_HEADER, SHARDS, shard_of


class LimiterStreams:
    """One client per shard, all on one channel."""

    def __init__(self, dialer: Dialer, target: str, *, joined: bool = True) -> None:
        """`joined`: what goes to one replica travels on one stream."""
        session = dialer.session(target, "ratelimit", quota_pb2_grpc.QuotaServiceStub)
        self._joined = joined
        self._on_stream: Callable[[int], None] = lambda shard: None

        def shard(number: int) -> MuxClient:
            return dialer.client(
                lambda: session(metadata=((SHARD_HEADER, str(number)),), wait_for_ready=True),
                quota_pb2,
                on_stream=lambda _: self._on_stream(number),
                on_silent=lambda: give_up_all(self.muxes[number].instance, self.muxes),
            )

        self.muxes = tuple(shard(number) for number in range(SHARDS))

    async def run(self, on_stream: Callable[[int], None]) -> None:
        """Keeps the streams open until cancelled; `on_stream` is told of a shard that has a new one."""
        self._on_stream = on_stream
        async with asyncio.TaskGroup() as group:
            for mux in self.muxes:
                group.create_task(mux.run())

    async def wait_connected(self, timeout: float) -> None:  # noqa: ASYNC109 - the error is ours, not TimeoutError
        """Returns once every shard has a stream.

        :raises WeirError: DEPENDENCY_UNAVAILABLE after `timeout` seconds.
        """
        await asyncio.gather(*(mux.wait_connected(timeout) for mux in self.muxes))

    @property
    def pending(self) -> int:
        """Calls that were not answered yet."""
        return sum(mux.queued + mux.in_flight for mux in self.muxes)

    def home(self, tenant: str) -> MuxClient:
        """The stream of the tenant's own shard, which leads to its owner."""
        return self.muxes[shard_of(tenant, len(self.muxes))]

    def to(self, tenant: str) -> MuxClient:
        """The stream that carries what goes to the tenant's owner."""
        return self.carrier(self.home(tenant))

    def carrier(self, mux: MuxClient) -> MuxClient:
        """The stream that carries what goes where this one leads."""
        return carrier(mux, self.muxes) if self._joined else mux
