"""What a prediction costs its tenant, and what it leaves behind: quota and money by rows, its record, what it says
about us. Nothing here waits but `acquire`, and that only where a new lease is needed.

| what became of it | rows billed | availability | its arm |
| --- | --- | --- | --- |
| answered | those that were asked about | good | good |
| answered by what was kept, or by a smaller version | likewise, at the price of what answered | good | as the refusal |
| the manifest's prior | none | neither: it is quick and no service | as the refusal |
| its caller left | those that were asked about | neither | neither |
| refused, late, failed | none | see `libs/outcomes/standing.py` | see there |

What the ladder answers, its version failed at: a rollout must see that, although no caller does.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from weir.audit.v1 import audit_pb2
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2

from libs.auditlog import AuditWriter
from libs.catalog import Catalog
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.limiter import Key, QuotaClient, SharedLease, SharedLeases
from libs.occupancy import jittered
from libs.outcomes import ArmKey, Begun, Ran, Recorder
from services.predictor.call import Answer, Call, Rank
from services.predictor.ladder import PRIOR
from services.predictor.records import LEASE, LOST, Records, billed_rows

ROUTE = "predict"
"""The route whose objectives predictions have."""
_RETRY = 5.0


class Lease(msgspec.Struct, kw_only=True, eq=False):
    """What a call holds."""

    rank: int
    """The class that it runs in."""
    held: SharedLease
    rows: int
    record: audit_pb2.Record
    place: int
    """Of the record's beginning in the journal."""
    arm: ArmKey | None
    begun: Begun | None
    spend: int = 0
    """Micro-dollars that it was billed, once it is settled."""

    @property
    def local(self) -> bool:
        """The limiter is away: it was taken from this process's own share."""
        return self.held.reservation.local


class Account:
    """Of one process."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        quota: QuotaClient,
        audit: AuditWriter,
        outcomes: Recorder,
        records: Records,
        clock: Clock,
        chance: Callable[[], float],
        life: str,
        mirror: Callable[[Call, Answer, ArmKey | None], None],
        most: int,
    ) -> None:
        """`life` differs from process to process and from start to start; `chance` gives numbers in [0, 1); `mirror`
        has an answered call answered a second time; `most` calls may run."""
        self._catalog = catalog
        self._quota = quota
        self._audit = audit
        self._outcomes = outcomes
        self._records = records
        self._clock = clock
        self._chance = chance
        self._mirror = mirror
        diary = _Diary(audit, records)
        self._leases = SharedLeases(quota, clock=clock, prefix=f"rows-{life}", diary=diary, most=most)

    # ---- a call ------------------------------------------------------------------------------------------------------

    async def acquire(self, call: Call, *, judged: bool = True) -> Lease:
        """Take its rows from the quota; it counts as begun from then on.

        :param judged: however it ends says something of its arm.

        :raises WeirError: QUOTA_ROWS, QUOTA_REQUESTS, QUOTA_SPEND; DEPENDENCY_UNAVAILABLE for a tenant whose requests
            must be audited while they cannot be; DEADLINE_EXCEEDED.
        """
        tenant = self._catalog.tenant(call.tenant)
        if self._audit.full and tenant.audit_required:
            retry = jittered(_RETRY, self._chance)
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "this request could not be audited", retry_after=retry)
        beyond = call.rank < Rank.OVER_QUOTA and self._catalog.plan(tenant).serve_over_quota
        key = Key(call.tenant, call.model, call.version, call.request_counted, beyond)
        held = self._leases.draw(key, call.rows)
        if held is None:
            held = await self._leases.wait(key, call.rows, deadline=call.deadline)
        over = held.reservation.over_quota
        record = self._begin(call, tenant)
        arm = self._catalog.arm_key(call.model, call.route) if judged else None
        return Lease(
            rank=max(call.rank, Rank.OVER_QUOTA) if over else call.rank,
            held=held,
            rows=call.rows,
            record=record,
            place=self._audit.open(record),
            arm=arm,
            begun=None if arm is None else self._began(arm, call),
        )

    def settle(self, lease: Lease, call: Call, ended: Answer | WeirError) -> None:
        """The call is over: once per lease."""
        rows = billed_rows(call, ended)
        version = ended.version if isinstance(ended, Answer) else call.version
        lease.spend = self._charge(lease, call, version, rows)
        if rows and version == call.version:
            lease.record.request.lease = lease.held.id
        self._records.end(lease.record, call, ended, rank=lease.rank, rows=rows, spend=lease.spend, local=lease.local)
        self._audit.write(lease.record, lease.place, traceparent=call.traceparent)
        if isinstance(ended, Answer):
            if ended.cause is not None:
                self._failed(call, ended.cause, lease, answered=True)
            if PRIOR not in ended.degraded:
                self._answered(lease, call, ended)
            self._mirror(call, ended, lease.arm)
        else:
            self._failed(call, ended, lease)
        self._outcomes.over(lease.begun)

    def refused(self, call: Call, error: WeirError) -> None:
        """The call was refused before it held anything."""
        record = self._begin(call, self._catalog.tenant(call.tenant))
        self._records.end(record, call, error, rank=call.rank, rows=0, spend=0)
        self._audit.write(record, traceparent=call.traceparent)
        self._failed(call, error, None)

    # ---- the process -------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Leases whose time is over, and ended rollouts; called about twice a second."""
        self._leases.sweep()
        self._outcomes.sweep()

    def drain(self) -> None:
        """Settle all that nobody draws from any more."""
        self._leases.drain()

    def lost(self, record: audit_pb2.Record, mark: int) -> audit_pb2.Record | None:
        """What ran here when this process's former life was killed: a call gets its record, and is billed nothing; a
        lease is settled with the rows that were used of it by then."""
        event = record.request
        if event.operation != LEASE:
            event.outcome = LOST
            return record
        self._quota.settle(
            quota_pb2.Settle(
                tenant=event.tenant,
                model=event.model,
                model_version=event.model_version,
                request_id=record.id,
                tokens=mark,
                rows=True,
            )
        )
        return None

    # ---- its parts ---------------------------------------------------------------------------------------------------

    def _begin(self, call: Call, tenant: registry_pb2.Tenant) -> audit_pb2.Record:
        model = self._catalog.told(call.model)
        return self._records.begun(call, model=model, training_allowed=tenant.training_allowed)

    def _began(self, arm: ArmKey, call: Call) -> Begun | None:
        route = call.route
        return self._outcomes.began(
            arm, call.question, given=call.given, model_version=route.model_version, route=ROUTE, tier=route.tier
        )

    def _charge(self, lease: Lease, call: Call, version: str, rows: int) -> int:
        """Take what is billed from the lease, or from the quota of another version that answered instead."""
        held, price = lease.held, self._catalog.prices.of(version, call.model)
        if version == call.version:
            before = held.used
            held.end(lease.rows, rows)
            # Together a lease's calls pay what the limiter charges for it: rounded up once, and not for each of them.
            return price.of_rows(before + rows) - price.of_rows(before)
        held.end(lease.rows, 0)
        if rows:
            self._quota.settle(
                quota_pb2.Settle(
                    tenant=call.tenant,
                    model=call.model,
                    model_version=version,
                    request_id=f"{call.request_id}/{int(self._chance() * 2**32):08x}",
                    tokens=rows,
                    rows=True,
                )
            )
        return price.of_rows(rows)

    def _answered(self, lease: Lease, call: Call, answer: Answer) -> None:
        total = self._clock.monotonic() - call.arrived
        ran = Ran(
            whole=True, first=total, total=total, model_version=answer.version, model=call.model, rows=answer.rows
        )
        # An answer that was kept, or that another version gave, is no work of the arm's.
        own = lease.arm if answer.version == call.version and not answer.cached else None
        self._outcomes.ended(ran, route=ROUTE, tier=call.route.tier, given=call.given, arm=own, begun=lease.begun)

    def _failed(self, call: Call, error: WeirError, lease: Lease | None, *, answered: bool = False) -> None:
        self._outcomes.refused(
            route=ROUTE,
            model=call.model,
            asked=call.route if call.version else None,
            error=error,
            given=call.given,
            over_quota=lease is not None and lease.held.reservation.over_quota,
            begun=None if lease is None else lease.begun,
            answered=answered,
        )


class _Diary:
    """See `libs.limiter.shared.Diary`: leases stand in the journal beside the calls that draw from them."""

    def __init__(self, audit: AuditWriter, records: Records) -> None:
        self._audit = audit
        self._records = records

    def opened(self, lease: SharedLease) -> int:
        """See `Diary`."""
        key = lease.key
        record = self._records.lease(lease.id, tenant=key.tenant, model=key.model, version=key.version)
        return self._audit.open(record)

    def used(self, place: int, rows: int) -> None:
        """See `Diary`."""
        self._audit.mark(place, rows)

    def closed(self, place: int) -> None:
        """See `Diary`."""
        self._audit.release(place)
