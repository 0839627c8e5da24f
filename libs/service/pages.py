"""A process's HTTP pages, which ask nobody who he is: /metrics for Prometheus, /livez and /readyz for whoever restarts
processes and sends them work, and pages of JSON that a service adds.

They are answered in threads of their own, and the two probes ask the event loop: one that hangs is not alive.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from libs.config import ServiceSettings
from libs.service.health import Health

if TYPE_CHECKING:
    from libs.telemetry.exposition import Exposition

_STOP_SECONDS = 60.0
PATIENCE = 5.0
"""Seconds that the event loop has to answer a probe: far more than the longest thing that it does at a stretch."""


def _metrics(exposition: Exposition, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    if environ["REQUEST_METHOD"] != "GET":
        start_response("405 Method Not Allowed", [("Allow", "GET")])
        return [b"use GET\n"]
    page = exposition.render(environ.get("HTTP_ACCEPT", ""), environ.get("HTTP_ACCEPT_ENCODING", ""))
    headers = [("Content-Type", page.content_type), ("Vary", "Accept, Accept-Encoding")]
    start_response("200 OK", headers + [("Content-Encoding", "gzip")] * page.compressed)
    return [page.body]


class PageServer(ThreadingMixIn, WSGIServer):
    """A thread per request, so that a slow scrape holds up no probe."""

    daemon_threads = True

    def server_bind(self) -> None:
        """As TCPServer's: HTTPServer would ask the name service for this host's full name, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = 10
    """Seconds for a request to arrive."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a probe is no event."""


Pages = Mapping[str, Callable[[], bytes]]
"""JSON by path; made in a thread of its own whenever it is asked for."""


def serve_pages(
    settings: ServiceSettings, health: Health, more: Pages | None = None, *, patience: float = PATIENCE
) -> PageServer:
    """Serves the pages of the process whose event loop runs here, until it is closed.

    :param more: further pages, also such as are put there later.
    :raises OSError: the port is taken.
    """
    from prometheus_client import disable_created_metrics

    from libs.telemetry.exposition import Exposition

    disable_created_metrics()  # series that nobody reads, one beside every counter
    exposition = Exposition()
    loop = asyncio.get_running_loop()

    async def fault() -> str:
        return health.fault

    def of_the_loop() -> str:
        asked = asyncio.run_coroutine_threadsafe(fault(), loop)
        try:
            return asked.result(patience)
        except TimeoutError:
            asked.cancel()
            raise

    def pages(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return _metrics(exposition, environ, start_response)
        if more and path in more:
            said = more[path]()
            start_response("200 OK", [("Content-Type", "application/json")])
            return [said]
        if path not in ("/livez", "/readyz"):
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [", ".join(sorted(("/livez", "/metrics", "/readyz", *(more or ())))).encode() + b"\n"]
        try:
            lacking = of_the_loop()
            if path == "/livez":
                lacking = ""
        except TimeoutError:
            lacking = f"the event loop has not answered for {patience:g} s"
        start_response("503 Service Unavailable" if lacking else "200 OK", [("Content-Type", "text/plain")])
        return [f"{settings.service} {settings.instance}: {lacking}\n".encode() if lacking else b"ok\n"]

    class Server(PageServer):
        address_family = socket.AF_INET6 if ":" in settings.metrics_host else socket.AF_INET

    server = Server((settings.metrics_host, settings.metrics_port), _Handler)
    server.set_app(pages)
    # It looks whether it is to stop: nobody stops it but tests, and a look is a process that wakes up.
    threading.Thread(target=server.serve_forever, args=(_STOP_SECONDS,), name="pages", daemon=True).start()
    return server
