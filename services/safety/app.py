"""The safety service's composition root."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from weir.safety.v1 import safety_pb2, safety_pb2_grpc

from libs.clock import Clock, SystemClock
from libs.errors import WeirError
from libs.mux import Codec, MuxServer
from libs.registry import RegistryView, Source, follow
from libs.resources.checks.safety import SHIPPED as SHIPPED_VERSION
from libs.safety_filter import PackError
from services.safety.config import Settings
from services.safety.packs import PackKeeper, load_shipped
from services.safety.policy.book import PolicyBook
from services.safety.server import SERVICE, SafetyHandler, SafetyServicer
from services.safety.turns import Turns

SHIPPED = Path(__file__).parent / "packs"
"""The packs that come with the service."""


class SafetyService:
    """A `libs.service.Service`."""

    def __init__(self, *, view: RegistryView, keeper: PackKeeper, mux: MuxServer, servicer: SafetyServicer) -> None:
        self._view = view
        self._keeper = keeper
        self._mux = mux
        self._servicer = servicer

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        safety_pb2_grpc.add_SafetyServiceServicer_to_server(self._servicer, server)
        return [SERVICE]

    async def run(self, ready: Callable[[], None]) -> None:
        """Ready once the floor, of the store or of the cached snapshot, is in force."""
        stop = self._view.on_change(self._keeper.apply)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._view.run(), name="registry.view")
                group.create_task(self._keeper.run(), name="safety.packs")
                await self._view.wait_ready()
                with contextlib.suppress(WeirError):  # logged; until it is mended, every request is refused
                    await self._keeper.compiled(self._keeper.book.floor)
                ready()
        finally:
            stop()
            await self._view.close()

    async def drain(self) -> None:
        """Sends the sessions away; their gateways reopen the filters elsewhere."""
        await self._mux.drain()

    def lacks(self) -> Sequence[str]:
        """See `libs.service.Waiting`."""
        return () if self._view.revision else ("registry",)

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}


async def build(settings: Settings, *, clock: Clock | None = None, store: Source | None = None) -> SafetyService:
    """The service. `store` replaces the registry in tests.

    :raises PackError: a shipped pack is bad, or the default policy is not among them.
    """
    clock = clock or SystemClock()
    directory = Path(settings.packs_dir) if settings.packs_dir else SHIPPED
    shipped = await asyncio.to_thread(load_shipped, directory, check=directory != SHIPPED)
    floor = f"{settings.default_policy}@{SHIPPED_VERSION}"
    if floor not in shipped:
        raise PackError(f"no shipped pack for the default policy {settings.default_policy!r}")
    book = PolicyBook(shipped=shipped, floor=floor, most=settings.max_packs)
    keeper = PackKeeper(book, patience=settings.policy_patience)
    handler = SafetyHandler(
        keeper=keeper,
        turns=Turns(clock=clock, max_waiting=settings.max_waiting_chars),
        max_filters=settings.max_filters,
        max_context=settings.max_context,
        max_input=settings.max_input_chars,
        max_delta=settings.max_delta_chars,
    )
    mux = MuxServer(
        codec=Codec.of(safety_pb2.SessionRequest, safety_pb2.SessionResponse),
        handler=handler,
        instance=settings.instance,
        clock=clock,
        max_in_flight=settings.max_in_flight,
    )
    return SafetyService(
        view=follow("safety", settings, source=store, clock=clock),
        keeper=keeper,
        mux=mux,
        servicer=SafetyServicer(mux=mux),
    )
