"""Multiplexed streams in one process's name, made alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from weir.mux.v1 import mux_pb2

from libs.clock import Clock
from libs.config import ServiceSettings
from libs.mux.client import MuxClient
from libs.mux.codec import Codec
from libs.mux.options import ClientOptions
from libs.rpc import make_channel


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens them. Whoever gets a client runs its `run()`."""

    settings: ServiceSettings
    """Whose name it is, and its certificate."""
    clock: Clock
    rng: random.Random
    lazy_hold: float = ClientOptions().lazy_hold
    """See `ClientOptions`."""
    life: str = ""
    """Tells one life of this process from another where peers must; drawn when not given."""

    def __post_init__(self) -> None:
        """Draws a life."""
        object.__setattr__(self, "life", self.life or f"{self.rng.getrandbits(64):016x}")

    def session(self, target: str, service: str, stub: Callable[[grpc.aio.Channel], Any]) -> Callable[..., Any]:
        """What starts a stream at an address, or wherever the mesh's name for the service leads."""
        return stub(self.channel(target, service)).Session  # type: ignore[no-any-return]

    def channel(self, target: str, service: str) -> grpc.aio.Channel:
        """A channel to a target of one of the mesh's services."""
        name = None if target.startswith("xds:") else f"{service}.weir.internal"
        return make_channel(target, tls=self.settings.tls, server_name=name)

    def link(
        self, target: str, service: str, stub: Callable[[grpc.aio.Channel], Any], messages: Any, **more: Any
    ) -> MuxClient:
        """A client of one service, which waits for it as long as it is away."""
        session = self.session(target, service, stub)
        return self.client(lambda: session(wait_for_ready=True), messages, **more)

    def client(
        self,
        open_stream: Callable[[], Any],
        messages: Any,
        *,
        connect_timeout: float = ClientOptions().connect_timeout,
        **hooks: Any,
    ) -> MuxClient:
        """A client of the `Session` that `open_stream` starts.

        :param messages: the module of its SessionRequest and SessionResponse, such as `quota_pb2`.
        :param hooks: `on_stream`, `on_refused`, `on_silent` of `MuxClient`.
        """
        own = self.settings
        return MuxClient(
            open_stream=open_stream,
            codec=Codec.of(messages.SessionRequest, messages.SessionResponse),
            hello=mux_pb2.Hello(service=own.service, instance=own.instance, zone=own.zone, life=self.life),
            clock=self.clock,
            rng=self.rng,
            options=ClientOptions(lazy_hold=self.lazy_hold, connect_timeout=connect_timeout),
            **hooks,
        )
