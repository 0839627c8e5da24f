"""Sends what is kept on to another OTLP backend, behind the store: whoever exports to this collector waits for nothing
of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from libs.telemetry import get_logger
from libs.traces import Span
from services.collector import convert, metrics

log = get_logger(__name__)
_BATCH = 512
_SECONDS = 10.0
"""For an answer."""
_PAUSES = (1.0, 30.0)
"""Seconds before another try: the first, doubled up to the longest."""
_FORWARDED, _LOST = metrics.SPANS.labels("forwarded"), metrics.SPANS.labels("not_forwarded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Where to."""

    url: str
    """"https://host:port" or "http://host:port" of OTLP over gRPC."""
    ca: str = ""
    """A PEM file of who may sign its certificate; empty: the usual ones."""
    header_files: Mapping[str, str]
    """By header, the file with its value, such as a token."""

    def __post_init__(self) -> None:
        """:raises ValueError: the address is none."""
        scheme, found, address = self.url.partition("://")
        if scheme not in ("http", "https") or not found or not address.rpartition(":")[2].isdigit() or "/" in address:
            raise ValueError("forward must be http://HOST:PORT or https://HOST:PORT")

    def channel(self) -> grpc.aio.Channel:
        """To it.

        :raises OSError: a file cannot be read.
        """
        scheme, _, address = self.url.partition("://")
        if scheme == "http":
            return grpc.aio.insecure_channel(address)
        roots = Path(self.ca).read_bytes() if self.ca else None
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(root_certificates=roots))

    def metadata(self) -> list[tuple[str, str]]:
        """Headers of each call; read anew each time, since tokens are renewed.

        :raises OSError: a file cannot be read.
        """
        return [(name.lower(), Path(path).read_text().strip()) for name, path in self.header_files.items()]


class Forwarder:
    """One per process. Keeps at most `most` spans that wait; the oldest go first, and are counted."""

    def __init__(self, backend: Backend, *, most: int) -> None:
        self._backend, self._most = backend, most
        self._waiting: deque[Span] = deque()
        self._wake = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Spans that wait."""
        return len(self._waiting)

    def put(self, spans: Iterable[Span]) -> None:
        """To be sent as soon as they can be."""
        self._waiting.extend(spans)
        while len(self._waiting) > self._most:
            self._waiting.popleft()
            _LOST.inc()
        self._wake.set()

    async def run(self) -> None:
        """Sends until cancelled."""
        async with self._backend.channel() as channel:
            export = trace_service_pb2_grpc.TraceServiceStub(channel).Export
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                    await self._sent(export, batch)

    async def _sent(self, export: Any, batch: Sequence[Span]) -> None:
        """Until it is taken, or there is no room for what waits any more: then the oldest, which it is, is given up."""
        request = trace_service_pb2.ExportTraceServiceRequest(resource_spans=convert.exported(batch))
        pause = _PAUSES[0]
        while True:
            try:
                answer = await export(request, timeout=_SECONDS, metadata=self._backend.metadata())
            except (grpc.aio.AioRpcError, OSError) as error:
                code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__
                log.warning("traces_not_forwarded", reason=code, spans=len(batch))
                if len(self._waiting) + len(batch) > self._most:
                    _LOST.inc(len(batch))
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSES[1])
                continue
            lost = min(answer.partial_success.rejected_spans, len(batch))
            _LOST.inc(lost)
            _FORWARDED.inc(len(batch) - lost)
            return
