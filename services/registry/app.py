"""The registry's composition root."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from weir.registry.v1 import registry_pb2_grpc

from libs.apikeys.pepper import read_pepper
from libs.auditlog.link import AuditLink, NoAudit, open_audit
from libs.auditlog.watch import SecurityWatch
from libs.changes import Writer
from libs.clock import Clock, SystemClock
from libs.registry import EtcdStore, RegistrySnapshot, RegistryView, Store
from services.registry import metrics
from services.registry.config import Settings
from services.registry.history import History
from services.registry.outbox import AuditOutbox
from services.registry.server import SERVICE, RegistryServicer

_DRAIN_SECONDS = 2.0
"""For records of the last changes; what is left waits in the outbox for the next start."""


class Registry:
    """Implements `libs.service.Service`."""

    def __init__(
        self,
        *,
        own_store: Store | None,
        view: RegistryView,
        audit: AuditLink | NoAudit,
        outbox: AuditOutbox,
        watch: SecurityWatch,
        history: History,
        servicer: RegistryServicer,
    ) -> None:
        self._own_store = own_store
        self._view = view
        self._audit = audit
        self.outbox = outbox
        """Where audit records wait."""
        self._watch = watch
        self._history = history
        self._servicer = servicer

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        registry_pb2_grpc.add_RegistryServiceServicer_to_server(self._servicer, server)
        return [SERVICE]

    async def run(self, ready: Callable[[], None]) -> None:
        """Ready with the first snapshot, from etcd or from the cache."""
        stop = self._view.on_change(_measure)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._view.run(), name="registry.view")
                tasks.create_task(self._audit.run(), name="audit.link")
                tasks.create_task(self.outbox.run(), name="audit.outbox")
                tasks.create_task(self._watch.run(), name="audit.security")
                tasks.create_task(self._history.run(), name="registry.history")
                await self._view.wait_ready()
                ready()
        finally:
            stop()
            if self._own_store is not None:
                await self._own_store.close()

    async def drain(self) -> None:
        """Lets watchers go, and gives the audit log a moment to take the last records."""
        self._servicer.drain()
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._watch.flush()
                while self.outbox.pending:
                    await self.outbox.wait_empty()
        except TimeoutError:
            return

    def lacks(self) -> Sequence[str]:
        """See `libs.service.Waiting`."""
        return () if self._view.revision else ("etcd",)

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}


async def build(settings: Settings, *, clock: Clock | None = None, store: Store | None = None) -> Registry:
    """The service. `store` replaces etcd in tests; it stays open.

    :raises OSError: the pepper or a TLS file cannot be read.
    :raises ValueError: the pepper is too short, or there is no etcd endpoint.
    """
    clock = clock or SystemClock()
    rng = random.Random()  # noqa: S311 - jitter, not a secret
    own_store = None
    if store is None:
        store = own_store = EtcdStore(settings.etcd, tls=settings.tls, guarded=True)
    cache = Path(settings.state_dir) / "registry.cache" if settings.state_dir else None
    view = RegistryView(store, cache_file=cache, clock=clock)
    audit = open_audit(settings.audit_target, settings, clock=clock, rng=rng, timeout=settings.audit_timeout)
    watch = SecurityWatch(audit, source=f"{settings.service}/{settings.instance}", clock=clock, rng=rng)
    outbox = AuditOutbox(store=store, port=audit, limit=settings.max_audit_backlog, sweep=settings.audit_sweep, rng=rng)
    writer = Writer(
        store=store,
        view=view,
        source=f"{settings.service}/{settings.instance}",
        clock=clock,
        new_id=lambda: uuid.uuid4().hex,
        room=outbox.require_room,
        written=outbox.notify,
    )
    pepper = await asyncio.to_thread(read_pepper, Path(settings.pepper_file))
    history = History(store=store, limit=settings.history_limit, interval=settings.history_interval, rng=rng)
    servicer = RegistryServicer(
        settings=settings,
        store=store,
        view=view,
        writer=writer,
        history=history,
        watch=watch,
        pepper=pepper,
        clock=clock,
    )
    return Registry(
        own_store=own_store,
        view=view,
        audit=audit,
        outbox=outbox,
        watch=watch,
        history=history,
        servicer=servicer,
    )


def _measure(snapshot: RegistrySnapshot) -> None:
    metrics.snapshot_revision.set(snapshot.revision)
