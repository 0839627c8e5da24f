"""The composition root of the store of records."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.records.v1 import answers_pb2_grpc, records_pb2_grpc

from libs.clock import Clock, SystemClock
from libs.errors import WeirError, from_rpc_error
from libs.mux import Dialer
from libs.registry import RegistryView, Source, follow
from libs.service import Ready
from services.records.compare import Comparer
from services.records.config import Settings
from services.records.keyed import SERVICE as ANSWERS
from services.records.keyed import AnswersServicer
from services.records.projector import Projector
from services.records.server import SERVICE, Questions, RecordsServicer
from services.records.store import Store

_READ_SECONDS = 15.0
_SWEEP_SECONDS = 30.0
"""How often answers that are over are looked for."""
_READERS = 4
"""Questions that the database is asked at once."""


class Records:
    """A `libs.service.Service`."""

    def __init__(self, settings: Settings, roles: RegistryView, *, clock: Clock, rng: random.Random) -> None:
        """:raises ValueError: the database's URL makes no sense."""
        self._settings = settings
        self._roles = roles
        self._available = False
        self._ready: Ready | None = None
        self._store = Store(settings.url, statement_seconds=settings.statement_seconds)
        self._writer = ThreadPoolExecutor(1, "records-write")
        self._readers = ThreadPoolExecutor(_READERS, "records-read")
        self._audit = Dialer(settings, clock, rng).channel(settings.audit, "audit")
        self._projector = Projector(
            self._store,
            self._read,
            thread=self._writer,
            clock=clock,
            look_seconds=settings.look_seconds,
            retry_seconds=settings.retry_seconds,
            available=self._database,
        )
        self._keys = ThreadPoolExecutor(2, "records-keys")
        self._answers = AnswersServicer(self._store.answers(), self._keys, clock=clock)
        self._servicer = RecordsServicer(
            Questions(self._store, self._readers, self._projector, users=self._users),
            self._projector,
            Comparer(self._store, self._read, threads=self._readers, folder=settings.state_dir or None),
            roles=roles,
            tls=settings.tls is not None,
        )

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        records_pb2_grpc.add_RecordsServiceServicer_to_server(self._servicer, server)
        answers_pb2_grpc.add_AnswersServiceServicer_to_server(self._answers, server)
        return [SERVICE, ANSWERS]

    async def run(self, ready: Ready) -> None:
        """Ready while the database can be used; what the audit service has to say comes when it is there."""
        self._ready = ready
        try:
            async with self._audit, asyncio.TaskGroup() as group:
                group.create_task(self._roles.run(), name="registry.view")
                group.create_task(self._projector.run(), name="records.projector")
                group.create_task(self._forget(), name="records.answers")
                while True:
                    await asyncio.sleep(self._settings.retention_seconds)
                    await self._projector.retire(
                        request_days=self._settings.request_days, usage_days=self._settings.usage_days
                    )
        finally:
            for pool in (self._writer, self._readers, self._keys):
                pool.shutdown(wait=True, cancel_futures=True)
            self._store.close()
            await self._roles.close()

    async def _forget(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            with suppress(WeirError):  # the database is away: later
                await self._answers.sweep(self._settings.answer_bytes)

    async def drain(self) -> None:
        """A transaction is whole or not at all: nothing is left to finish."""

    def lacks(self) -> Sequence[str]:
        """See `libs.service.Waiting`."""
        return () if self._available else ("database",)

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}

    def _database(self, available: bool) -> None:
        self._available = available
        if self._ready is not None:
            self._ready() if available else self._ready.withdraw()

    async def _read(self, request: audit_pb2.ReadRequest) -> audit_pb2.ReadResponse:
        try:
            answer: audit_pb2.ReadResponse = await audit_pb2_grpc.AuditServiceStub(self._audit).Read(
                request, timeout=_READ_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return answer

    async def _users(self, sequences: Sequence[int]) -> audit_pb2.UsersResponse:
        try:
            answer: audit_pb2.UsersResponse = await audit_pb2_grpc.AuditServiceStub(self._audit).Users(
                audit_pb2.UsersRequest(sequences=sequences), timeout=_READ_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return answer


async def build(
    settings: Settings, *, clock: Clock | None = None, source: Source | None = None, rng: random.Random | None = None
) -> Records:
    """The service; its database is opened by `run`. `source` replaces the registry in tests.

    :raises ValueError: the database's URL makes no sense.
    """
    clock = clock or SystemClock()
    roles = follow("records", settings, source=source, clock=clock)
    return Records(settings, roles, clock=clock, rng=rng or random.SystemRandom())
