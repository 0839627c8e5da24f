"""Reads and verifies the log for operators, and takes it up again when one says so. Each leaves a record."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weir.audit.v1 import audit_pb2

from libs.auditlog import verify_directory
from libs.auditlog.anchoring import Judgement
from libs.auditlog.keys import Verifier
from libs.auditlog.tail import read_tail
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.telemetry import get_logger
from services.audit import convert
from services.audit.anchors import Anchors
from services.audit.committer import Committer
from services.audit.sealing import Sealing

DEFAULT_TAIL = 20
MAX_TAIL = 1000
MAX_REASON = 1000
"""Characters of an operator's reason."""
log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """What operators may do with the log."""

    log_dir: Path
    checkpoint_dir: Path
    verifier: Verifier
    key_fingerprint: str
    anchors: Anchors
    committer: Committer[audit_pb2.AuditReply]
    clock: Clock
    rng: random.Random
    source: str
    """This service and instance, "audit/audit-0"."""
    compared: Callable[[], bool]
    """The log's own chain held when it was opened, and was compared with its anchors, whatever they said."""
    told: Callable[[Judgement], None]
    """Is told what the anchors say."""
    sealing: Sealing

    async def tail(self, request: audit_pb2.TailRequest, actor: str) -> audit_pb2.TailResponse:
        """Return the newest records; the read itself is recorded first. A stored line that does not hold comes as one
        that says so, whichever tenant is asked for: nobody knows whose it was.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when the read cannot be recorded.
        """
        upto = self.committer.count
        await self.record(actor, "audit.Tail", f"audit/{request.tenant or '*'}")
        lines = await asyncio.to_thread(
            read_tail,
            self.log_dir,
            limit=min(request.limit or DEFAULT_TAIL, MAX_TAIL),
            upto=upto,
            wanted=convert.about(request.tenant),
        )
        return audit_pb2.TailResponse(records=[convert.shown(line, self.sealing.opened) for line in lines])

    async def verify(self, actor: str) -> audit_pb2.VerifyResponse:
        """Verify the chain and compare it with every anchor. A log that takes no records is verified all the same."""
        try:
            await self.record(actor, "audit.Verify", "audit/*")
        except WeirError as error:
            log.warning("audit_read_unrecorded", actor=actor, action="audit.Verify", reason=error.message)
        seen = await self.anchors.look()
        if self.compared():
            self.told(seen.judgement)
        report = await asyncio.to_thread(
            verify_directory,
            self.log_dir,
            checkpoints=self.checkpoint_dir,
            public_key=self.verifier,
            anchors=seen.judgement.lines,
            upto=None if self.committer.damaged else self.committer.count,
            keys=self.sealing.keys(),
            buried=self.sealing.buried(),
        )
        own = seen.judgement.faults if self.compared() else [self.committer.damaged]
        faults = [*report.faults, *(fault for fault in own if fault not in report.faults)]
        return audit_pb2.VerifyResponse(
            ok=not faults,
            records=report.records,
            checkpoints=report.checkpoints,
            head=report.head,
            first=report.first,
            sealed=report.sealed,
            erased=report.erased,
            tombstones=report.tombstones,
            faults=faults,
            notes=[*report.notes, *seen.judgement.notes],
            key_fingerprint=self.key_fingerprint,
        )

    async def accept(self, request: audit_pb2.AcceptRequest, actor: str) -> audit_pb2.AcceptResponse:
        """Record that an operator takes the log as it is for the true one, and anchor it over what says otherwise.

        :raises WeirError: INVALID_REQUEST without a reason, where nothing is wrong, or for a log whose own chain does
            not hold; DEPENDENCY_UNAVAILABLE when the disk or a place is away; CONFLICT when an anchor changed.
        """
        if not 0 < len(request.reason) <= MAX_REASON:
            raise WeirError(Reason.INVALID_REQUEST, f"say why, in at most {MAX_REASON} characters", limit="reason")
        if not self.compared():
            raise WeirError(Reason.INVALID_REQUEST, f"the log itself does not hold: {self.committer.damaged}")
        seen = await self.anchors.look()
        faults = seen.judgement.faults
        if not faults:
            raise WeirError(Reason.INVALID_REQUEST, "no anchor says that anything is wrong")
        reason = f"{request.reason} (accepted: {'; '.join(faults)})"
        reply = await self.record(actor, "audit.Accept", "audit/*", reason[: 4 * MAX_REASON], forced=True)
        await self.anchors.replace(seen)
        log.warning("audit_log_accepted", actor=actor, faults=faults)
        self.told((await self.anchors.look()).judgement)
        return audit_pb2.AcceptResponse(sequence=reply.appended.sequence, faults=faults)

    async def note_recovery(self, records: int) -> None:
        """Say in the log that its newest records were found beyond the last checkpoint: whole, but vouched for by
        nobody. A crash leaves such, and so would somebody with the disk who writes a few of his own."""
        if not records or self.committer.damaged:
            return
        count = self.committer.count
        why = f"records {count - records + 1} to {count} were found beyond the last checkpoint and kept"
        try:
            await self.record(self.source, "audit.Recover", "audit/*", why)
        except WeirError as error:
            log.warning("audit_recovery_unrecorded", records=records, reason=error.message)

    async def record(
        self, actor: str, action: str, resource: str, reason: str = "", *, forced: bool = False
    ) -> audit_pb2.AuditReply:
        """Record what somebody did with the log.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when it is not on the disk.
        """
        record = audit_pb2.Record(
            id=f"read-{self.rng.getrandbits(128):032x}",
            source=self.source,
            admin=audit_pb2.AdminEvent(actor=actor, action=action, resource=resource, reason=reason),
        )
        record.time.FromNanoseconds(int(self.clock.time() * 1e9))
        return await self.committer.append(convert.draft_of_record(record, max_bytes=1 << 14), forced=forced)
