"""Streams from one replica to another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
from weir.mux.v1 import mux_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.clock import Clock
from libs.mux import Codec, MuxClient
from libs.rpc import make_channel
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
    channel = _channel(settings, address)
    return Link(_mux(settings, channel, (), clock, rng), channel)


def open_shards(settings: Settings, *, clock: Clock, rng: random.Random) -> Shards:
    """Streams to whoever owns each shard."""
    channel = _channel(settings, settings.owners)
    muxes = (_mux(settings, channel, ((SHARD_HEADER, str(shard)),), clock, rng) for shard in range(SHARDS))
    return Shards(tuple(muxes), channel)


def _channel(settings: Settings, target: str) -> grpc.aio.Channel:
    name = None if target.startswith("xds:") else "ratelimit.weir.internal"
    return make_channel(target, tls=settings.tls, server_name=name)


def _mux(
    settings: Settings,
    channel: grpc.aio.Channel,
    metadata: Sequence[tuple[str, str]],
    clock: Clock,
    rng: random.Random,
) -> MuxClient:
    session = quota_pb2_grpc.QuotaServiceStub(channel).Session
    return MuxClient(
        open_stream=lambda: session(metadata=tuple(metadata), wait_for_ready=True),
        codec=Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse),
        hello=mux_pb2.Hello(service=settings.service, instance=settings.instance, zone=settings.zone),
        clock=clock,
        rng=rng,
    )
