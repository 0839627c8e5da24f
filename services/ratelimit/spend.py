"""What was spent of budgets: alerts, and one record per tenant in the registry's store, which outlasts all limiters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from libs.clock import Clock
from libs.errors import WeirError
from libs.quota import Ledger, Record
from libs.registry import Compare, Put, RegistrySnapshot, RegistryView, Store, budget_specs, keys
from libs.telemetry import get_logger
from services.ratelimit import metrics
from services.ratelimit.convert import record_of, spend_key, spend_of, stored_record
from services.ratelimit.ports import Nanoseconds

log = get_logger(__name__)
_AT_ONCE = 50
"""Records in one transaction; a store takes about a hundred operations."""


class SpendRecords:
    """Follows the budgets of the registry, and writes what its ledger knows of the tenants that it owns.

    There is no queue: what is due is the difference between the ledger and what lies in the store, so while the store
    is away nothing piles up. A record only grows: a later period, or more of the same one. Who writes on top of what
    another has written since, fails, reads that and tries again.

    :param owns: whether this replica is a tenant's owner, as far as it knows. Where two believe it, both may write.
    :param seconds: between two writes.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        view: RegistryView,
        store: Store,
        owns: Callable[[str], bool],
        now: Nanoseconds,
        clock: Clock,
        seconds: float,
    ) -> None:
        self._ledger = ledger
        self._view = view
        self._store = store
        self._owns = owns
        self._now = now
        self._clock = clock
        self._seconds = seconds
        self._applied = RegistrySnapshot()
        self._owned: set[str] = set()
        self._written: dict[str, tuple[int, Record]] = {}
        """By tenant, what was written or read here last, and its revision: the view may not have come to it yet."""

    def apply(self, snapshot: RegistrySnapshot) -> None:
        """Makes the snapshot's budgets those in force; a tenant whose budget is new here goes on from its record."""
        before, self._applied = self._applied, snapshot
        if snapshot.budgets is before.budgets and snapshot.tenants is before.tenants:
            return
        self._ledger.apply_budgets(budget_specs(snapshot))
        for tenant in snapshot.budgets.keys() - before.budgets.keys():
            self._adopt(tenant, record_of(snapshot.spend.get(tenant)))
        unknown = self._ledger.budgets.unknown_zones()
        metrics.ZONE_FAULTS.set(len(unknown))
        if unknown:
            log.warning("time_zones_unknown", zones=unknown)

    async def run(self) -> None:
        """Alerts and writes every so many seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            await self.write()

    async def write(self) -> None:
        """One round. Never raises for a store that is away: the next round has what this one could not write."""
        tenants = sorted({*self._applied.budgets, *self._applied.spend})
        self._owned.intersection_update(tenants)
        away = False
        for start in range(0, len(tenants), _AT_ONCE):
            chunk = [tenant for tenant in tenants[start : start + _AT_ONCE] if self._look(tenant)]
            try:
                if not away and not await self._save(chunk):
                    for tenant in chunk:
                        if not await self._save([tenant]) and await self._read(tenant):
                            await self._save([tenant])
            except WeirError as error:
                away = True
                metrics.SPEND_FAILED.inc()
                log.warning("spend_not_written", error=error.reason.name)
            await asyncio.sleep(0)
        metrics.BUDGETS.show(self._spent())

    def _spent(self) -> dict[tuple[str, str], float]:
        budgets = {tenant: budget for tenant in self._owned if (budget := self._ledger.budgets.of(tenant)) is not None}
        now = self._now()
        return {
            (tenant, metrics.PERIOD[monthly]): share
            for tenant, budget in budgets.items()
            for monthly, share in budget.spent(now)
        }

    def _look(self, tenant: str) -> bool:
        """Whether it is ours; one that has become so goes on from its record. Tells what thresholds were reached."""
        if not self._owns(tenant):
            self._owned.discard(tenant)
            self._written.pop(tenant, None)
            return False
        if tenant not in self._owned and self._view.live:
            self._owned.add(tenant)
            self._adopt(tenant, record_of(self._applied.spend.get(tenant)))
        budget = self._ledger.budgets.of(tenant)
        for alert in budget.alerts(self._now()) if budget is not None else ():
            metrics.ALERTS[alert.monthly].inc()
            log.warning("budget_alert", tenant=tenant, period=alert.period, percent=alert.percent)
        return True

    def _adopt(self, tenant: str, record: Record) -> None:
        budget = self._ledger.budgets.of(tenant)
        if budget is not None:
            budget.adopt(record)

    async def _read(self, tenant: str) -> bool:
        """Looks what another has written, which has not come to the view yet; False when there is nothing."""
        known = await self._store.get(spend_key(tenant))
        if known is None:
            return False
        record = stored_record(known.value)
        self._written[tenant] = known.mod_revision, record
        if tenant not in self._owned:
            self._adopt(tenant, record)
        return True

    async def _save(self, tenants: list[str]) -> bool:
        """Writes what has changed; False when another has written one of them meanwhile, and nothing was written."""
        due = {tenant: change for tenant in tenants if (change := self._change(tenant)) is not None}
        if not due:
            return True
        at = self._clock.time()
        result = await self._store.txn(
            compares=[Compare(spend_key(tenant), revision) for tenant, (revision, _) in due.items()],
            puts=[
                Put(spend_key(tenant), keys.encode(spend_of(tenant, record, at)))
                for tenant, (_, record) in due.items()
                if record is not None
            ],
            deletes=[spend_key(tenant) for tenant, (_, record) in due.items() if record is None],
        )
        (metrics.SPEND_WRITTEN if result.succeeded else metrics.SPEND_CONFLICT).inc()
        for tenant, (_, record) in due.items():
            self._written.pop(tenant, None)
            if result.succeeded and record is not None:
                self._written[tenant] = result.revision, record
        return result.succeeded

    def _change(self, tenant: str) -> tuple[int, Record | None] | None:
        """The revision to write upon, and what to write, None to delete; nothing when it is well as it is."""
        known = self._view.stored(spend_key(tenant))
        revision, stored = known.mod_revision if known else 0, record_of(self._view.snapshot.spend.get(tenant))
        written = self._written.get(tenant)
        if written is not None and written[0] > revision:
            revision, stored = written
        budget = self._ledger.budgets.of(tenant)
        if tenant not in self._applied.budgets or budget is None:
            return (revision, None) if revision else None
        record = stored.joined(budget.record(self._now()))
        changed = record != stored if revision else record.month.microusd > 0
        return (revision, record) if changed else None
