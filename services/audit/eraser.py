"""Erases on somebody's word, and what is older than its retention by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from weir.audit.v1 import audit_pb2

from libs.auditlog import AuditFiles, WriteFailedError
from libs.auditlog.chain import LineError, decode_entry
from libs.auditlog.frame import FrameError, header_of
from libs.auditlog.layout import lines_of, segments
from libs.auditlog.retention import CLASSES, expired, first_kept_month, now_by
from libs.auditlog.tombstones import check_request
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.sealing.keks import KekError
from libs.sealing.keyring import SealingError
from libs.sealing.scope import Scope
from libs.sealing.vault import VaultError
from libs.telemetry import get_logger
from services.audit.committer import Committer
from services.audit.sealing import Erased, Sealing

log = get_logger(__name__)
RETENTION = "retention"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Eraser:
    """What makes the log forget. Each erasure is a record itself, the tombstone."""

    files: AuditFiles
    log_dir: Path
    sealing: Sealing
    committer: Committer[audit_pb2.AuditReply]
    clock: Clock
    source: str
    """This service and instance, "audit/audit-0"."""
    days: Mapping[str, int]
    """Retention by class."""
    anchored: Callable[[], int]
    """The last record that every anchor knows of: what they point at must stay."""
    projected: Callable[[], int]
    """The last record that the store of records has: bills outlast the log."""
    record: Callable[[str, str, str, str], Awaitable[object]]
    """Records (actor, action, resource, reason)."""

    async def erase(self, request: audit_pb2.EraseRequest, actor: str) -> audit_pb2.EraseResponse:
        """Destroy the keys of what a tenant, or one of its end users, left.

        :raises WeirError: INVALID_REQUEST, naming the field; NOT_FOUND where no key seals anything of it;
            DEPENDENCY_UNAVAILABLE when log or keys cannot be written: repeating it finishes it.
        """
        wrong = check_request(
            reason=request.reason,
            reference=request.reference,
            tenant=request.tenant,
            subject=request.subject,
            before=request.before,
        )
        if request.data_class and request.data_class not in CLASSES:
            wrong = f"data_class: one of {', '.join(sorted(CLASSES))}"
        if wrong or request.reason == RETENTION:
            field, _, _ = wrong.partition(":")
            raise WeirError(
                Reason.INVALID_REQUEST, wrong or "reason: retention erases by itself", limit=field or "reason"
            )
        self._check_writable()
        scope = Scope(
            upto=0,
            tenant=request.tenant,
            subject=self.sealing.digest(request.tenant, request.subject) if request.subject else "",
            data_class=request.data_class,
            before=request.before,
        )
        if request.dry_run:
            keys = await self._on_thread(lambda: self.sealing.covered(scope))
            return audit_pb2.EraseResponse(keys=keys, clear_upto=self.sealing.clear_upto)
        done = await self._on_thread(
            lambda: self.sealing.erase(scope, actor=actor, reason=request.reason, reference=request.reference)
        )
        if not done.keys:
            raise WeirError(Reason.NOT_FOUND, "no key seals anything of this in the log", limit="scope")
        log.warning("audit_erased", actor=actor, tombstones=done.tombstones, keys=done.keys)
        return audit_pb2.EraseResponse(tombstones=done.tombstones, keys=done.keys, clear_upto=self.sealing.clear_upto)

    async def rotate(self, actor: str) -> audit_pb2.RotateKeysResponse:
        """Wrap every data key anew, under a new key-encryption key where this service makes them.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when log, keys or the key-encryption key cannot be used.
        """
        self._check_writable()
        await self.record(actor, "audit.RotateKeys", "audit/*", "")
        kek, keys = await self._on_thread(self.sealing.rotate)
        log.warning("audit_keys_rotated", actor=actor, kek=kek, keys=keys)
        return audit_pb2.RotateKeysResponse(kek=kek, keys=keys)

    async def keep_retention(self, interval: float) -> None:
        """Look for what is too old every `interval` seconds until cancelled."""
        while True:
            await asyncio.sleep(interval)
            if self.committer.writable:
                await self.retain()

    async def retain(self) -> None:
        """Destroy the keys of months that are too old, then truncate segments that are. What fails is tried again."""
        now = now_by(self.clock.time(), self.sealing.told)
        try:
            for name, days in sorted(self.days.items()):
                scope = Scope(upto=0, data_class=name, before=first_kept_month(days, now))
                done: Erased = await self._on_thread(
                    lambda scope=scope: self.sealing.erase(scope, actor=self.source, reason=RETENTION)  # type: ignore[misc]
                )
                if done.keys:
                    log.info("audit_keys_expired", data_class=name, before=scope.before, keys=done.keys)
            await self._on_thread(self.sealing.note_applied)
            # In a thread of its own: an old log may have gigabytes to look at, and commits do not wait for that.
            first = await asyncio.to_thread(self._first_kept, now)
            if first:
                why = f"records 1 to {first - 1} are older than their retention"
                await self.record(self.source, "audit.Truncate", "audit/*", why)
                await self._on_thread(lambda: self.files.truncate(first))
                log.info("audit_truncated", first=first)
        except WeirError as error:
            log.error("audit_retention_failed", reason=error.message)
        except OSError as error:
            log.error("audit_retention_failed", reason=error.strerror)

    def _first_kept(self, now: float) -> int:
        """The first record that stays, the beginning of a segment; 0: nothing goes."""
        found = segments(self.log_dir)
        kept, anchored = 0, self.anchored()
        for at, (_, path) in enumerate(found[:-1]):
            following = found[at + 1][0]
            if following - 1 > anchored:
                break
            try:
                headers = [header_of(decode_entry(line).record) for line in lines_of(path)[0]]
            except (LineError, FrameError):
                break  # damage is evidence
            if not expired(headers, self.days, now):
                break
            if following - 1 > (projected := self.projected()):
                log.warning("audit_truncation_waits_for_records", projected=projected, wanted=following - 1)
                break
            kept = following
        return kept

    def _check_writable(self) -> None:
        if not self.committer.writable:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the audit log takes no records now", retry_after=1.0)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        try:
            return await self.committer.on_thread(work)
        except (WriteFailedError, VaultError, KekError, SealingError, OSError) as error:
            raise WeirError(
                Reason.DEPENDENCY_UNAVAILABLE, f"not done, or not all of it: {error}", retry_after=5.0
            ) from error
