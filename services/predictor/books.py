"""All that accounts for predictions, made once and run as one: limiter, journal, audit log, evidence, mirrors."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterable
from pathlib import Path
from tempfile import mkdtemp

from weir.audit.v1 import audit_pb2, audit_pb2_grpc

from libs.auditlog import AuditWriter
from libs.catalog import Catalog
from libs.clock import Clock
from libs.errors import WeirError
from libs.journal import Journal
from libs.limiter import LimiterStreams, QuotaClient, Settlements
from libs.mux import Dialer, MuxClient
from libs.outcomes import OutcomeReporter, Recorder
from libs.registry import RegistrySnapshot
from libs.telemetry import get_logger
from services.predictor.account import Account
from services.predictor.config import Settings
from services.predictor.executors import Executors
from services.predictor.records import Records
from services.predictor.shadow import Mirrors

log = get_logger(__name__)
_LOOK_SECONDS = 0.005


class Books:
    """One per process."""

    def __init__(
        self, settings: Settings, catalog: Catalog, executors: Executors, *, clock: Clock, rng: random.Random
    ) -> None:
        dialer, targets = Dialer(settings, clock, rng, settings.lazy_seconds), settings.targets
        self._settings = settings
        self._audit_link: MuxClient = dialer.link(targets.audit, "audit", audit_pb2_grpc.AuditServiceStub, audit_pb2)
        journal = Journal(
            Path(settings.state_dir or mkdtemp(prefix="weir-predictor-")) / "audit-journal",
            rng=rng,
            max_bytes=settings.journal_bytes,
            # One for each call that may run, lease that calls draw from (one may be there that its caller has left) and
            # settlement that is kept; and one more, for a settlement stands beside its lease for a moment.
            slots=3 * settings.max_active + 2,
        )
        source, life = f"{settings.service}/{settings.instance}", uuid.UUID(int=rng.getrandbits(128))
        self._audit = AuditWriter(self._audit_link, journal, source=source, clock=clock, hold=settings.lazy_seconds)
        self._quota = QuotaClient(
            LimiterStreams(dialer, targets.ratelimit, joined=True),
            clock=clock,
            decide_timeout=settings.decide_timeout,
            end_timeout=settings.end_timeout,
            lease_seconds=settings.lease_seconds,
            settlements=Settlements(self._audit, most=settings.max_active),
        )
        outcomes = Recorder(catalog, clock=clock)
        self.mirrors = Mirrors(
            executors,
            quota=self._quota,
            evidence=outcomes,
            snapshot=lambda: catalog.snapshot,
            settings=settings.shadow,
            clock=clock,
        )
        self.account = Account(
            catalog=catalog,
            quota=self._quota,
            audit=self._audit,
            outcomes=outcomes,
            records=Records(source=source, zone=settings.zone, clock=clock),
            clock=clock,
            chance=rng.random,
            life=life.hex,
            mirror=self.mirrors.mirror,
            most=settings.max_active,
        )
        self._reporter = OutcomeReporter(
            outcomes.table,
            lambda: catalog.snapshot,
            lambda address: dialer.channel(address, "rollout"),
            source=settings.instance,
            incarnation=str(life),
            clock=clock,
            rng=rng,
        )

    async def run(self) -> None:
        """Keeps the streams open, and sends what there is, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in (self._audit_link, self._quota, self._audit, self._reporter):
                group.create_task(each.run())

    async def begin(self) -> None:
        """Waits for the services that it writes to, for a while, and accounts for what ran when a former life of this
        process was killed."""
        patience = self._settings.leaf_patience
        waits = (self._quota.wait_connected(patience), self._audit_link.wait_connected(patience))
        _log_missing(await asyncio.gather(*waits, return_exceptions=True))
        lost = self._audit.recover(self.account.lost, self._quota.settle_again)
        if lost:
            log.warning("predictions_lost", requests=len(lost))

    def update(self, snapshot: RegistrySnapshot) -> None:
        """Takes a new snapshot, which its catalog has already."""
        self._quota.update(snapshot)
        self.mirrors.update(snapshot)

    def sweep(self) -> None:
        """Called about twice a second."""
        self.account.sweep()

    async def drain(self) -> None:
        """All calls are over: what they left behind leaves. Bound it with a timeout."""
        await self.mirrors.drain()
        self.account.drain()
        if self._audit.connected:  # else what waits goes on from the disk, in the next life
            await self._audit.drained()
        while self._quota.pending:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)


def _log_missing(outcomes: Iterable[object]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, WeirError):
            log.warning("started_without", domain=outcome.limit)
        elif isinstance(outcome, BaseException):
            raise outcome
