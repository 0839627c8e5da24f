"""The pages of a process: what probes and Prometheus are told over plain HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import threading
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from libs.config import ServiceSettings
from libs.service import serve
from libs.service.health import Health
from libs.service.pages import Pages, PageServer, serve_pages
from tests.integration.service.test_service_life import Scripted, settings
from tests.support.owners import until

Answer = tuple[int, str]


@pytest.fixture(autouse=True)
def soon_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test ends its servers, which nobody else does."""
    monkeypatch.setattr("libs.service.pages._STOP_SECONDS", 0.02)


class Lacking(Scripted):
    """A service that knows what it lacks."""

    missing: Sequence[str] = ("registry", "safety")

    def lacks(self) -> Sequence[str]:
        return self.missing


@contextlib.asynccontextmanager
async def pages(
    health: Health, more: Pages | None = None, *, patience: float = 60.0, host: str = "127.0.0.1"
) -> AsyncIterator[PageServer]:
    told = ServiceSettings(service="worker", instance="worker-0", metrics_host=host)
    server = serve_pages(told, health, more, patience=patience)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


def ask(server: PageServer, path: str, method: str = "GET") -> Answer:
    host, port = server.server_address[:2]
    connection = http.client.HTTPConnection(str(host), port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


async def test_readiness_is_what_health_says_and_liveness_is_not() -> None:
    health, service = Health(), Lacking()
    service.may_drain.clear()
    async with pages(health) as server, contextlib.AsyncExitStack() as stack:
        told: dict[str, Answer] = {"before": await asyncio.to_thread(ask, server, "/readyz")}
        await stack.enter_async_context(serve(service, settings(), health=health))
        await service.started.wait()
        assert service.ready is not None
        told["starting"] = await asyncio.to_thread(ask, server, "/readyz")
        service.ready()
        await until(lambda: not health.fault)
        told["ready"] = await asyncio.to_thread(ask, server, "/readyz")
        service.missing = ()
        service.ready.withdraw()
        await until(lambda: bool(health.fault))
        told["withdrawn"] = await asyncio.to_thread(ask, server, "/readyz")
        ending = asyncio.ensure_future(stack.aclose())
        await service.drained.wait()
        told["draining"] = await asyncio.to_thread(ask, server, "/readyz")
        alive = await asyncio.to_thread(ask, server, "/livez")
        service.may_drain.set()
        await ending
    assert told == {
        "before": (503, "worker worker-0: starting\n"),
        "starting": (503, "worker worker-0: starting: no registry, no safety\n"),
        "ready": (200, "ok\n"),
        "withdrawn": (503, "worker worker-0: not ready\n"),
        "draining": (503, "worker worker-0: draining\n"),
    }
    assert alive == (200, "ok\n")


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_a_process_whose_event_loop_hangs_is_neither_alive_nor_ready(path: str) -> None:
    health = Health()
    await health.serving()
    answers: list[Answer] = []
    answered = threading.Event()

    def probe() -> None:
        answers.append(ask(server, path))
        answered.set()

    async with pages(health, patience=0.05) as server:
        thread = threading.Thread(target=probe)
        thread.start()
        answered.wait(20)  # in the loop's own thread: nothing else runs in it
        await asyncio.to_thread(thread.join)
        assert answers == [(503, "worker worker-0: the event loop has not answered for 0.05 s\n")]
        assert await asyncio.to_thread(ask, server, path) == (200, "ok\n")


async def test_metrics_are_there_and_nothing_else() -> None:
    async with pages(Health()) as server:
        status, text = await asyncio.to_thread(ask, server, "/metrics")
        assert status == 200
        assert "# HELP" in text
        assert (await asyncio.to_thread(ask, server, "/metrics", "POST"))[0] == 405
        for path in ("/", "/livez/", "/debug", "/metrics/x"):
            assert (await asyncio.to_thread(ask, server, path))[0] == 404


async def test_pages_are_served_over_ipv6_too() -> None:
    async with pages(Health(), host="::1") as server:
        assert (await asyncio.to_thread(ask, server, "/livez"))[0] == 200


async def test_a_service_may_have_pages_of_its_own_also_later() -> None:
    more: dict[str, Callable[[], bytes]] = {}
    async with pages(Health(), more) as server:
        assert (await asyncio.to_thread(ask, server, "/targets"))[0] == 404
        more["/targets"] = lambda: b"[1]"
        assert await asyncio.to_thread(ask, server, "/targets") == (200, "[1]")
        assert await asyncio.to_thread(ask, server, "/") == (404, "/livez, /metrics, /readyz, /targets\n")
