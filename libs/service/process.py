"""`main` and `serve`: see the package docstring."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import grpc
import uvloop
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from libs import xds_bootstrap
from libs.authority.calls import may_call
from libs.config import ENDING_SECONDS, ConfigError, ServiceSettings, load
from libs.config.addresses import join
from libs.rpc import make_server
from libs.rpc.server import bind
from libs.service.certificate import check_certificate, watch_expiry
from libs.service.endpoint import keep_endpoint
from libs.service.exits import cause, code_of
from libs.service.health import Health
from libs.service.host import watch_host
from libs.service.pages import Pages, serve_pages
from libs.telemetry import configure_logging, get_logger
from libs.telemetry.tracing import configure_tracing, shutdown_tracing

log = get_logger(__name__)
_FLUSH_SECONDS = 1.5
_WITHDRAW_SECONDS = 1.0
"""A drain waits this long for the endpoint to leave the registry; then its lease ends it."""


class Ready(Protocol):
    """How a service tells whether it can serve."""

    def __call__(self) -> None:
        """It can: health turns SERVING and the endpoint counts."""

    def withdraw(self) -> None:
        """It cannot any more: health turns NOT_SERVING and nobody counts the endpoint, until the next call."""

    def changed(self) -> None:
        """`Service.endpoint_extra` says something else than before: the endpoint is written anew, under its lease."""


class Service(Protocol):
    """What a composition root returns."""

    def register(self, server: grpc.aio.Server) -> list[str]:
        """Add the servicers; return their full names for health and reflection."""

    async def run(self, ready: Ready) -> None:
        """The process's background work, for its whole life. Calls `ready` once its dependencies are good: health
        turns SERVING and the endpoint counts. Ends only by cancellation or with the error that ends the process."""

    async def drain(self) -> None:
        """Finish or hand over running work; called on SIGTERM after health turned NOT_SERVING and the endpoint was
        withdrawn, and given `drain_seconds`."""

    def endpoint_extra(self) -> Mapping[str, Any]:
        """Further fields of `weir.registry.v1.Endpoint`, as far as they are known: asked from the start on, also while
        it is not ready, and again after `Ready.changed`."""


@runtime_checkable
class Listening(Protocol):
    """A `Service` that must know its own address; optional."""

    def listening(self, address: str) -> None:
        """Called once, before `run`, with the "host:port" under which others reach it."""


@runtime_checkable
class Waiting(Protocol):
    """A `Service` that can tell what it lacks; optional."""

    def lacks(self) -> Sequence[str]:
        """The services and other things that it has not heard of yet; asked while it is not ready, for /readyz."""


@runtime_checkable
class Paged(Protocol):
    """A `Service` with pages of its own beside /metrics; optional."""

    def pages(self) -> Pages:
        """By path; each is made in a thread, not in the event loop."""


class _Readiness:
    """`Ready` over two events, of which one is set."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.lost = asyncio.Event()
        self.news = asyncio.Event()

    def __call__(self) -> None:
        self.lost.clear()
        self.ready.set()

    def withdraw(self) -> None:
        self.ready.clear()
        self.lost.set()

    def changed(self) -> None:
        self.news.set()


S = TypeVar("S", bound=ServiceSettings)
Builder = Callable[[S], Awaitable[Service]]


@dataclass(frozen=True, slots=True)
class Running:
    """A served service; what tests hold on to."""

    service: Service
    port: int
    ready: asyncio.Event


@contextlib.asynccontextmanager
async def serve(
    service: Service, settings: ServiceSettings, *, health: Health | None = None, **server_options: Any
) -> AsyncIterator[Running]:
    """Serve until the block ends, then drain. `server_options` go to `libs.rpc.make_server`."""
    health = health or Health()
    server = make_server(may_call=may_call, max_message_bytes=settings.max_message_bytes, **server_options)
    names = service.register(server)
    await health.cover(server, names, service.lacks if isinstance(service, Waiting) else tuple)
    reflection.enable_server_reflection(
        [*names, reflection.SERVICE_NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name], server
    )
    port = bind(server, join(settings.host, settings.port), tls=settings.tls)
    if isinstance(service, Listening):
        service.listening(join(settings.advertised, port))
    await server.start()
    readiness = _Readiness()
    running = Running(service, port, readiness.ready)
    try:
        async with asyncio.TaskGroup() as group:
            background = group.create_task(service.run(readiness), name=f"{settings.service}.run")
            announce = group.create_task(_announce(running, readiness, health, settings), name="announce")
            try:
                yield running
            finally:
                announce.cancel()
                await health.not_serving("draining")
                await asyncio.wait((announce,), timeout=_WITHDRAW_SECONDS)
                try:
                    await asyncio.wait_for(service.drain(), settings.drain_seconds)
                except TimeoutError:
                    log.warning("drain_cut", seconds=settings.drain_seconds)
                await server.stop(grace=1.0)
                background.cancel()
    finally:
        await server.stop(grace=None)


async def _announce(running: Running, readiness: _Readiness, health: Health, settings: ServiceSettings) -> None:
    """Be SERVING while the service says that it is ready, and registered all the time, as what it is."""
    extra, news = running.service.endpoint_extra, readiness.news
    async with asyncio.TaskGroup() as group:
        if settings.etcd:
            kept = keep_endpoint(settings, running.port, extra, ready=lambda: health.ready, news=news)
            group.create_task(kept, name="endpoint")
        while True:
            await readiness.ready.wait()
            await health.serving()
            news.set()
            log.info("serving", port=running.port)
            await readiness.lost.wait()
            await health.not_serving("not ready")
            news.set()
            log.info("not_serving")


def main(settings_type: type[S], build: Builder[S], **server_options: Any) -> None:
    """Run a service process until SIGTERM or SIGINT. Ends with an exit code of libs.service.exits."""
    try:
        settings = load(settings_type)
        check_certificate(settings)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(code_of(error))
    configure_logging(service=settings.service, instance=settings.instance, level=settings.log_level)
    _tell_grpc(settings)
    try:
        uvloop.run(_main(settings, build, server_options))
    except Exception as error:  # the last boundary: whatever ends the process is told in the log's own form
        log.error("service_failed", error=type(cause(error)).__name__, exc_info=error)
        sys.exit(code_of(error))


def _tell_grpc(settings: ServiceSettings) -> None:
    """gRPC reads where the control planes are out of its process's environment, when "xds:///" is first dialled."""
    if settings.xds:
        # A file wins over a text, and this one would be of whoever started us.
        os.environ.pop("GRPC_XDS_BOOTSTRAP", None)
        os.environ["GRPC_XDS_BOOTSTRAP_CONFIG"] = xds_bootstrap.render(
            node_id=settings.instance, zone=settings.zone, xds=settings.xds, tls=settings.tls
        )


async def _main(settings: S, build: Builder[S], server_options: dict[str, Any]) -> None:
    configure_tracing(
        service=settings.service,
        instance=settings.instance,
        zone=settings.zone,
        endpoint=settings.trace_endpoint,
        tls=settings.tls,
    )
    health = Health()
    pages: dict[str, Callable[[], bytes]] = {}
    if settings.metrics_port:
        serve_pages(settings, health, pages)
        watch_host(settings.state_dir, lambda: health.ready)
        if settings.tls is not None:
            watch_expiry(settings.tls)
    stop = asyncio.Event()

    def told_to_stop() -> None:
        if not stop.is_set():
            stop.set()
            _end_within(settings.drain_seconds + ENDING_SECONDS)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop)
    try:
        if (service := await _built(build(settings), stop)) is not None:
            pages |= service.pages() if isinstance(service, Paged) else {}
            async with serve(service, settings, health=health, **server_options):
                await stop.wait()
                log.info("draining")
    finally:
        await _flush_traces()
    log.info("stopped")


async def _built(building: Awaitable[Service], stop: asyncio.Event) -> Service | None:
    """The service, or None when the process is told to stop first."""
    made, told = asyncio.ensure_future(building), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((made, told), return_when=asyncio.FIRST_COMPLETED)
        return made.result() if made.done() else None
    finally:
        for task in (made, told):
            task.cancel()
        await asyncio.wait((made, told))


def _end_within(seconds: float) -> None:
    """Ends this process then, whatever hangs: whoever stops it has been told that it takes no longer."""

    def cut() -> None:
        log.error("stop_cut", seconds=seconds)
        os._exit(os.EX_SOFTWARE)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()


async def _flush_traces() -> None:
    """Sends what is buffered, as far as the collector takes it soon: in a thread that the end does not wait for."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def flush() -> None:
        shutdown_tracing()
        with contextlib.suppress(RuntimeError):  # the loop has gone on without it
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=flush, daemon=True).start()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), _FLUSH_SECONDS)
