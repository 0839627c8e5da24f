"""The audit service's composition root."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from weir.audit.v1 import audit_pb2, audit_pb2_grpc

from libs.artifacts import BlobStore, open_store
from libs.auditlog import AuditFiles, LogDamagedError, load_or_create_signer, load_verifier
from libs.auditlog.anchoring import Judgement
from libs.auditlog.keys import PUBLIC_NAME, Verifier, fingerprint, public_bytes
from libs.clock import Clock, SystemClock
from libs.mux import Codec, MuxServer
from libs.registry import EtcdStore, RegistryView, Store, follow
from libs.sealing.keks import KekError
from libs.sealing.keyring import SealingError
from libs.sealing.vault import VaultError
from libs.service import Ready
from libs.telemetry import get_logger
from services.audit import metrics
from services.audit.anchors import Anchors, keep_anchored
from services.audit.committer import Committer
from services.audit.config import Settings
from services.audit.eraser import Eraser
from services.audit.exporter import Exporter
from services.audit.feed import Feed
from services.audit.reader import Reader
from services.audit.reconciler import Reconciler
from services.audit.sealing import Sealing, write
from services.audit.server import SERVICE, AppendHandler, AuditServicer, appended

log = get_logger(__name__)
_UNCOMPARED = "the log was not compared with its anchors yet"
_FIRST_SECONDS = 0.05
"""Between two tries to anchor a log that is new."""


class AuditService:
    """A `libs.service.Service`."""

    def __init__(
        self,
        *,
        settings: Settings,
        files: AuditFiles,
        store: Store,
        roles: RegistryView,
        bucket: BlobStore | None,
        clock: Clock,
        rng: random.Random,
        log_dir: Path,
        checkpoint_dir: Path,
        verifier: Verifier,
        key_fingerprint: str,
        sealing: Sealing,
        public_key: bytes,
    ) -> None:
        self._settings = settings
        self._files = files
        self._store = store
        self._roles = roles
        self._bucket = bucket
        self._key_fingerprint = key_fingerprint
        self._ready: Ready | None = None
        self._compared = False
        self._sealing = sealing
        self._committer: Committer[audit_pb2.AuditReply] = Committer(
            files,
            lambda drafts: write(files, sealing, drafts),
            max_queued=settings.max_queued,
            max_group=settings.max_group,
            probe_seconds=settings.probe_seconds,
            clock=clock,
            result=appended,
            on_writable=self._on_writable,
        )
        self._committer.damaged = _UNCOMPARED
        self._keys_fault = ""
        metrics.SEALING.set_function(lambda: float(not self._keys_fault and not self._committer.unsealed))
        self._anchors = Anchors(
            store,
            bucket,
            files,
            settings.instance,
            verify=verifier,
            on_thread=self._committer.on_thread,
            clock=clock,
            bucket_seconds=settings.bucket_seconds,
        )
        self._mux = MuxServer(
            codec=Codec.of(audit_pb2.SessionRequest, audit_pb2.SessionResponse),
            handler=AppendHandler(committer=self._committer, max_record_bytes=settings.max_record_bytes),
            instance=settings.instance,
            clock=clock,
            max_in_flight=settings.max_in_flight,
        )
        self._reader = Reader(
            committer=self._committer,
            anchors=self._anchors,
            clock=clock,
            rng=rng,
            source=f"{settings.service}/{settings.instance}",
            log_dir=log_dir,
            checkpoint_dir=checkpoint_dir,
            verifier=verifier,
            key_fingerprint=key_fingerprint,
            compared=lambda: self._compared,
            told=self._judged,
            sealing=sealing,
        )
        self._reconciler = Reconciler(log_dir, count=lambda: self._committer.count)
        feed = Feed(
            log_dir,
            count=lambda: self._committer.count,
            compared=lambda: self._compared,
            grown=self._committer.grown,
            opened=sealing.opened,
        )
        self._eraser = Eraser(
            files=files,
            log_dir=log_dir,
            sealing=sealing,
            committer=self._committer,
            clock=clock,
            source=sealing.source,
            days=settings.retention_days,
            anchored=lambda: self._anchors.oldest,
            projected=lambda: feed.kept,
            record=self._reader.record,
        )
        exporter = Exporter(
            files=files,
            log_dir=log_dir,
            sealing=sealing,
            sign=sealing.sign,
            public_key=public_key,
            rfc3339=sealing.rfc3339,
            record=self._reader.record,
        )
        self._servicer = AuditServicer(
            mux=self._mux,
            reader=self._reader,
            eraser=self._eraser,
            exporter=exporter,
            reconciler=self._reconciler,
            feed=feed,
            roles=roles,
            tls=settings.tls is not None,
        )

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        audit_pb2_grpc.add_AuditServiceServicer_to_server(self._servicer, server)
        return [SERVICE]

    async def run(self, ready: Ready) -> None:
        """Ready while records can be written. With a damaged log, or one that its anchors contradict, it stays up, not
        ready, to be read and verified.

        :raises LogLockedError: another process has the log.
        :raises OSError: the log cannot be opened.
        """
        try:
            sound = await self._open()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._committer.run(), name="audit.committer")
                group.create_task(self._roles.run(), name="registry.view")
                if not sound:
                    return
                await self._open_keys()
                await self._first_anchor()
                await self._reader.note_recovery(self._files.recovered)
                self._ready = ready
                self._on_writable()
                group.create_task(
                    keep_anchored(self._anchors, self._judged, interval=self._settings.anchor_seconds),
                    name="audit.anchors",
                )
                group.create_task(self._eraser.keep_retention(self._settings.retention_seconds), name="audit.retention")
        finally:
            self._reconciler.close()
            await self._committer.on_thread(self._sealing.close)
            self._committer.shut()
            await self._roles.close()
            if self._bucket is not None:
                await self._bucket.close()
            await self._store.close()

    async def drain(self) -> None:
        """Sends the writers away, writes what waits and anchors the last checkpoint."""
        await self._mux.drain()
        await self._committer.close()
        if self._compared and not self._committer.damaged:
            await self._anchors.advance()

    def lacks(self) -> Sequence[str]:
        """See `libs.service.Waiting`."""
        return () if self._committer.writable else ("disk that can be written",)

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}

    async def _open(self) -> bool:
        """Open the files; False for a log that does not hold, which leaves `damaged` set for good."""
        pinned = self._settings.key_fingerprint
        try:
            if pinned and pinned != self._key_fingerprint:
                raise LogDamagedError("the key in the key folder is not the one that is pinned")
            await self._committer.on_thread(self._files.open)
        except LogDamagedError as error:
            self._committer.damaged = str(error)
            metrics.INTACT.set(0)
            metrics.WRITABLE.set(0)
            log.error("audit_log_damaged", reason=str(error))
            return False
        if self._files.torn_bytes:
            log.warning("audit_unfinished_write_removed", bytes=self._files.torn_bytes)
        metrics.SEQUENCE.set(self._files.count)
        return True

    async def _open_keys(self) -> None:
        """Nothing is taken before records can be sealed, and nothing ever goes unsealed: writers keep it meanwhile. A
        key that comes back is taken up without a restart."""
        while True:
            try:
                await self._committer.on_thread(self._sealing.open)
            except (KekError, VaultError, SealingError) as error:
                if self._committer.damaged != str(error):
                    log.error("audit_keys_unusable", reason=str(error))
                self._committer.damaged = self._keys_fault = str(error)
                await asyncio.sleep(self._settings.probe_seconds)
                continue
            self._committer.damaged, self._keys_fault = _UNCOMPARED, ""
            return

    async def _first_anchor(self) -> None:
        """Compare before the first record is taken. Only a log that is new waits for etcd: from its first record on,
        an anchor that is not there is one that was lost."""
        while True:
            seen = await self._anchors.look()
            away = not seen.asked and self._files.count
            if seen.judgement.faults or seen.revision or away:
                self._compared = True
                self._judged(seen.judgement)
                return
            if seen.asked:
                await self._anchors.advance()
            await asyncio.sleep(_FIRST_SECONDS)

    def _judged(self, judgement: Judgement) -> None:
        """The log takes records while nothing that was found contradicts it."""
        damaged = "; ".join(judgement.faults)
        metrics.INTACT.set(0 if damaged else 1)
        before, self._committer.damaged = self._committer.damaged, damaged
        metrics.WRITABLE.set(int(self._committer.writable))
        if damaged == before:
            return
        if damaged:
            log.error("audit_log_contradicted", reason=damaged)
        elif before != _UNCOMPARED:
            log.warning("audit_log_taken_up_again")
        self._on_writable()

    def _on_writable(self) -> None:
        if self._ready is None:
            return
        if self._committer.writable:
            self._ready()
        else:
            self._ready.withdraw()


async def build(
    settings: Settings, *, clock: Clock | None = None, store: Store | None = None, rng: random.Random | None = None
) -> AuditService:
    """The service; its log is opened by `run`. `store` replaces etcd in tests.

    :raises KeyFileError: the key files hold something else.
    :raises OSError: they cannot be read or written.
    :raises ValueError: there is no etcd endpoint, or an address makes no sense.
    """
    clock = clock or SystemClock()
    source = store
    if store is None:
        store = EtcdStore(settings.etcd, tls=settings.tls)
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
        max_group=settings.max_group,
        segment_bytes=settings.segment_bytes,
        source=f"{settings.service}/{settings.instance}",
    )
    rng = rng or random.SystemRandom()
    sealing = Sealing(
        vault_dir=settings.directory(settings.sealing_dir, "sealing"),
        kek=settings.kek or str(settings.directory("", "kek")),
        files=files,
        log_dir=log_dir,
        sign=signer,
        verify=verifier,
        source=f"{settings.service}/{settings.instance}",
        now=clock.time,
        monotonic=clock.monotonic,
        rfc3339=lambda: _rfc3339(clock.time()),
        rng=rng,
    )
    return AuditService(
        settings=settings,
        files=files,
        store=store,
        roles=follow("audit", settings, source=source, clock=clock),
        bucket=open_store(settings.blobs) if settings.blobs else None,
        clock=clock,
        rng=rng,
        log_dir=log_dir,
        checkpoint_dir=checkpoint_dir,
        verifier=verifier,
        key_fingerprint=fingerprint(key_dir / PUBLIC_NAME),
        sealing=sealing,
        public_key=public_bytes(key_dir / PUBLIC_NAME),
    )


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
