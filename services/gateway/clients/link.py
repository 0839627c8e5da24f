"""Multiplexed streams to the deciding services, made alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from weir.mux.v1 import mux_pb2

from libs.clock import Clock
from libs.mux import Codec, MuxClient
from libs.rpc import make_channel
from services.gateway.config import Settings


def open_link(
    settings: Settings,
    target: str,
    service: str,
    *,
    stub: Callable[[grpc.aio.Channel], Any],
    codec: Codec,
    clock: Clock,
    rng: random.Random,
    metadata: Sequence[tuple[str, str]] = (),
    on_stream: Callable[[int], None] | None = None,
) -> MuxClient:
    """A client for one service. The caller runs its `run()`. `metadata` chooses the shard, where there are shards."""
    name = None if target.startswith("xds:") else f"{service}.weir.internal"
    session = stub(make_channel(target, tls=settings.tls, server_name=name)).Session
    return MuxClient(
        open_stream=lambda: session(metadata=tuple(metadata), wait_for_ready=True),
        codec=codec,
        hello=mux_pb2.Hello(service=settings.service, instance=settings.instance, zone=settings.zone),
        clock=clock,
        rng=rng,
        on_stream=on_stream,
    )
