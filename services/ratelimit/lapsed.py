"""Leases that ended by themselves and that nobody settled: their gateway is gone, its disk as well, or it would have
said by now what they had used. Each becomes a record, so that nothing is used without a trace: by the replica that
speaks for its tenant, and by another one where that has died before it did. That there is a record goes into the
ledger's own journal and to the other replicas, so none makes a second one, nor does a former life's journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from weir.audit.v1 import audit_pb2

from libs.auditlog.security import to_timestamp
from libs.clock import Clock
from libs.quota import LimitKind, unit_of
from libs.quota.settled import Charge, Key

OUTCOME = "usage_unknown"


class Lapsed:
    """Makes records of them."""

    def __init__(
        self,
        put: Callable[[audit_pb2.Record], None],
        *,
        full: Callable[[], bool] = lambda: False,
        owns: Callable[[str], bool],
        source: str,
        clock: Clock,
    ) -> None:
        """`put` takes a record at once, and would lose it while it is `full`; `owns` says whether this replica speaks
        for a tenant."""
        self._put = put
        self._full = full
        self._owns = owns
        self._source = source
        self._clock = clock

    def __call__(self, lapsed: Iterable[tuple[Key, Charge]]) -> Iterator[Key]:
        """They are forgotten; what they had reserved is the most that they can have used. Those of which there is a
        record then."""
        for (tenant, request_id), charge in lapsed:
            if self._owns(tenant) and not self._full():
                self._put(self._record(tenant, request_id, charge))
                yield tenant, request_id

    def _record(self, tenant: str, lease_id: str, charge: Charge) -> audit_pb2.Record:
        event = audit_pb2.RequestEvent(
            request_id=lease_id.partition("/")[0],
            tenant=tenant,
            model_version=charge.version,
            outcome=OUTCOME,
            at_most_microusd=charge.spend,
        )
        if unit_of(charge.model) is LimitKind.ROWS:
            event.at_most_rows = charge.tokens
        else:
            event.at_most_tokens = charge.tokens
        at = to_timestamp(self._clock.time())
        return audit_pb2.Record(id=f"unknown-{lease_id}", time=at, source=self._source, request=event)
