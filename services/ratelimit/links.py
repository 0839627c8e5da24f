"""Streams from one replica to another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.clock import Clock
from libs.mux import Dialer, MuxClient
from libs.sharding import SHARD_HEADER, SHARDS
from services.ratelimit.config import Settings


@dataclass(frozen=True, slots=True)
class Link:
    """A client and the channel below it."""

    mux: MuxClient
    channel: grpc.aio.Channel

    async def run(self) -> None:
        """Keeps the stream open until cancelled, then closes the channel."""
        try:
            await self.mux.run()
        finally:
            await self.channel.close()


@dataclass(frozen=True, slots=True)
class Shards:
    """One client per shard, and the channel below them all."""

    muxes: tuple[MuxClient, ...]
    channel: grpc.aio.Channel

    async def run(self) -> None:
        """Keeps the streams open until cancelled, then closes the channel."""
        try:
            async with asyncio.TaskGroup() as group:
                for mux in self.muxes:
                    group.create_task(mux.run())
        finally:
            await self.channel.close()


def open_link(settings: Settings, address: str, *, clock: Clock, rng: random.Random) -> Link:
    """A link to another replica."""
    dialer = Dialer(settings, clock, rng)
    channel = dialer.channel(address, "ratelimit")
    return Link(_mux(dialer, channel, ()), channel)


def open_shards(settings: Settings, *, clock: Clock, rng: random.Random) -> Shards:
    """Streams to whoever owns each shard."""
    dialer = Dialer(settings, clock, rng)
    channel = dialer.channel(settings.owners, "ratelimit")
    muxes = (_mux(dialer, channel, ((SHARD_HEADER, str(shard)),)) for shard in range(SHARDS))
    return Shards(tuple(muxes), channel)


def _mux(dialer: Dialer, channel: grpc.aio.Channel, metadata: Sequence[tuple[str, str]]) -> MuxClient:
    session = quota_pb2_grpc.QuotaServiceStub(channel).Session
    return dialer.client(lambda: session(metadata=tuple(metadata), wait_for_ready=True), quota_pb2)
