"""The audit service's composition root."""

import asyncio
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import grpc
from weir.audit.v1 import audit_pb2, audit_pb2_grpc

from libs.auditlog import AuditFiles, LogDamagedError, load_or_create_signer, load_verifier
from libs.auditlog.keys import PUBLIC_NAME
from libs.clock import Clock, SystemClock
from libs.mux import Codec, MuxServer
from libs.registry import EtcdStore, MemoryStore, Store
from libs.service import Ready
from libs.telemetry import get_logger
from services.audit import metrics
from services.audit.anchors import Anchors
from services.audit.committer import Committer
from services.audit.config import Settings
from services.audit.server import SERVICE, AppendHandler, AuditServicer, Reader, appended

log = get_logger(__name__)


class AuditService:
    """A `libs.service.Service`."""

    def __init__(
        self,
        *,
        settings: Settings,
        files: AuditFiles,
        store: Store,
        anchors: Anchors,
        clock: Clock,
        rng: random.Random,
        reader_parts: Mapping[str, Any],
    ) -> None:
        self._files = files
        self._store = store
        self._anchors = anchors
        self._ready: Ready | None = None
        self._committer: Committer[audit_pb2.AuditReply] = Committer(
            files,
            max_queued=settings.max_queued,
            max_group=settings.max_group,
            probe_seconds=settings.probe_seconds,
            clock=clock,
            result=appended,
            on_writable=self._on_writable,
        )
        self._mux = MuxServer(
            codec=Codec.of(audit_pb2.SessionRequest, audit_pb2.SessionResponse),
            handler=AppendHandler(committer=self._committer, max_record_bytes=settings.max_record_bytes),
            instance=settings.instance,
            clock=clock,
            max_in_flight=settings.max_in_flight,
        )
        reader = Reader(
            committer=self._committer,
            anchors=anchors,
            clock=clock,
            rng=rng,
            source=f"{settings.service}/{settings.instance}",
            **reader_parts,
        )
        self._servicer = AuditServicer(
            mux=self._mux,
            reader=reader,
            session_peers=settings.session_peers,
            reader_peers=settings.reader_peers,
            tls=settings.tls is not None,
        )

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        audit_pb2_grpc.add_AuditServiceServicer_to_server(self._servicer, server)
        return [SERVICE]

    async def run(self, ready: Ready) -> None:
        """Ready while records can be written. With a damaged log it stays up, not ready, to be read and verified.

        :raises LogLockedError: another process has the log.
        :raises OSError: the log cannot be opened.
        """
        self._ready = ready
        try:
            await self._open()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._committer.run(), name="audit.committer")
                if not self._committer.damaged:
                    group.create_task(self._anchors.run(lambda: self._committer.checkpoint_line), name="audit.anchors")
                    ready()
                else:
                    metrics.WRITABLE.set(0)
        finally:
            self._committer.shut()
            await self._store.close()

    async def drain(self) -> None:
        """Sends the writers away, writes what waits and anchors the last checkpoint."""
        await self._mux.drain()
        await self._committer.close()
        if not self._committer.damaged:
            await self._anchors.write(self._committer.checkpoint_line)

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}

    async def _open(self) -> None:
        try:
            await asyncio.to_thread(self._files.open)
            self._committer.damaged = await self._anchors.fault(self._files.count, self._files.head)
        except LogDamagedError as error:
            self._committer.damaged = str(error)
        if self._committer.damaged:
            log.error("audit_log_damaged", reason=self._committer.damaged)
            return
        if self._files.torn_bytes:
            log.warning("audit_unfinished_write_removed", bytes=self._files.torn_bytes)
        metrics.WRITABLE.set(1)
        metrics.SEQUENCE.set(self._files.count)

    def _on_writable(self, writable: bool) -> None:
        if self._ready is None:
            return
        if writable:
            self._ready()
        else:
            self._ready.withdraw()


async def build(
    settings: Settings, *, clock: Clock | None = None, store: Store | None = None, rng: random.Random | None = None
) -> AuditService:
    """The service; its log is opened by `run`. `store` replaces etcd in tests.

    :raises KeyFileError: the key files hold something else.
    :raises OSError: they cannot be read or written.
    """
    clock = clock or SystemClock()
    if store is None:
        store = EtcdStore(settings.etcd, tls=settings.tls) if settings.etcd else MemoryStore()
    log_dir = settings.directory(settings.log_dir, "log")
    checkpoint_dir = settings.directory(settings.checkpoint_dir, "checkpoints")
    key_dir = settings.directory(settings.key_dir, "keys")
    signer = load_or_create_signer(key_dir)
    verifier = load_verifier(key_dir / PUBLIC_NAME)
    files = AuditFiles(
        log_dir,
        checkpoint_dir,
        sign=signer,
        verify=verifier,
        now=lambda: _rfc3339(clock.time()),
        segment_bytes=settings.segment_bytes,
        dedupe_records=settings.dedupe_records,
    )
    return AuditService(
        settings=settings,
        files=files,
        store=store,
        anchors=Anchors(store, settings.instance, verify=verifier, interval=settings.anchor_seconds),
        clock=clock,
        rng=rng or random.SystemRandom(),
        reader_parts={"log_dir": log_dir, "checkpoint_dir": checkpoint_dir, "verifier": verifier},
    )


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
