"""The store of records on a free port, beside an audit service."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.records.v1 import records_pb2_grpc

from libs.registry import MemoryStore
from libs.rpc import make_channel
from libs.service import serve
from services.records.app import Records, build
from services.records.config import Settings


@dataclass
class Store:
    """A running store of records."""

    service: Records
    stub: Any
    ready: Any
    port: int


@contextlib.asynccontextmanager
async def records_service(root: Path, audit: int, *, wait: bool = True, **more: Any) -> AsyncIterator[Store]:
    """Runs it on the files under `root`, beside the audit service on a port."""
    root.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - a test's
    options = {"state_dir": str(root), "look_seconds": 0.01, "retry_seconds": 0.02, "drain_seconds": 2, **more}
    settings = Settings(service="records", instance="records-0", audit=f"127.0.0.1:{audit}", **options)
    service = await build(settings, source=MemoryStore())
    async with serve(service, settings) as running:
        if wait:
            await running.ready.wait()
        async with make_channel(f"127.0.0.1:{running.port}", tls=None, translate_errors=True) as channel:
            yield Store(service, records_pb2_grpc.RecordsServiceStub(channel), running.ready, running.port)
