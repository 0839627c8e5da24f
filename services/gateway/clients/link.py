"""Multiplexed streams to the deciding services, made alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from weir.admission.v1 import admission_pb2, admission_pb2_grpc
from weir.mux.v1 import mux_pb2

from libs.clock import Clock
from libs.mux import ClientOptions, Codec, MuxClient
from libs.rpc import make_channel
from services.gateway.clients.owner import OwnerStreams
from services.gateway.config import Settings

_OWNER_SECONDS = 2.0
"""From opening a stream to an owner's Welcome: after that another process is asked."""


def open_link(
    settings: Settings,
    target: str,
    service: str,
    *,
    stub: Callable[[grpc.aio.Channel], Any],
    codec: Codec,
    clock: Clock,
    rng: random.Random,
    on_stream: Callable[[int], None] | None = None,
) -> MuxClient:
    """A client for one service. The caller runs its `run()`."""
    session = _session(settings, target, service, stub)
    return MuxClient(
        open_stream=lambda: session(wait_for_ready=True),
        codec=codec,
        hello=_hello(settings),
        clock=clock,
        rng=rng,
        options=ClientOptions(lazy_hold=settings.lazy_seconds),
        on_stream=on_stream,
    )


def open_pool(
    settings: Settings, pool: str, *, replicas: Callable[[], Sequence[str]], clock: Clock, rng: random.Random
) -> MuxClient:
    """A client of whoever owns a pool; `replicas` gives the addresses of the admission processes that are known."""
    stub = admission_pb2_grpc.AdmissionServiceStub
    streams = OwnerStreams(
        pool,
        ring=_session(settings, settings.targets.admission, "admission", stub),
        direct=lambda address: _session(settings, address, "admission", stub),
        replicas=replicas,
    )
    return MuxClient(
        open_stream=streams.open,
        codec=Codec.of(admission_pb2.SessionRequest, admission_pb2.SessionResponse),
        hello=_hello(settings),
        clock=clock,
        rng=rng,
        options=ClientOptions(connect_timeout=_OWNER_SECONDS, lazy_hold=settings.lazy_seconds),
        on_stream=streams.opened,
        on_refused=streams.refused,
    )


def _session(settings: Settings, target: str, service: str, stub: Callable[[grpc.aio.Channel], Any]) -> Any:
    name = None if target.startswith("xds:") else f"{service}.weir.internal"
    return stub(make_channel(target, tls=settings.tls, server_name=name)).Session


def _hello(settings: Settings) -> mux_pb2.Hello:
    return mux_pb2.Hello(service=settings.service, instance=settings.instance, zone=settings.zone)
