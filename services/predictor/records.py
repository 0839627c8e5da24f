"""What a prediction leaves in the audit log. Pure but for the clock that it is given."""

from __future__ import annotations

from weir.audit.v1 import audit_pb2

from libs.apikeys import user_pseudonym
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.outcomes import tenants
from libs.usage.records import PREDICT
from services.predictor.call import Answer, Call, Rank
from services.predictor.ladder import PRIOR

OK = "ok"
LOST = "predictor_lost"
"""The outcome of a call whose predictor was killed: nobody had its answer."""
LEASE = "lease"
"""The operation of openings that are no call but what calls draw from; it is in no record."""
_FAILED = frozenset({Reason.ENGINE_ERROR, Reason.INTERNAL, Reason.WORKER_LOST})
_OUTCOMES = {Reason.CANCELLED: "cancelled", Reason.DEADLINE_EXCEEDED: "deadline"}
_SECOND = 1_000_000_000


def outcome_of(ended: Answer | WeirError) -> str:
    """As records and metrics have it: "evicted" when it was queued, "rejected" when it did not run."""
    if isinstance(ended, Answer):
        return OK
    if ended.reason in _FAILED:
        return "error"
    known = _OUTCOMES.get(ended.reason)
    return known or ("evicted" if ended.reason.name.startswith("EVICTED_") else "rejected")


def billed_rows(call: Call, ended: Answer | WeirError) -> int:
    """Rows that a call is charged.

    What it was answered, whoever computed it; nothing for the manifest's prior, which looks at no row, and nothing for
    what failed. A caller who leaves is charged what it asked for: else leaving at the last moment would make capacity
    free.
    """
    if isinstance(ended, Answer):
        return 0 if PRIOR in ended.degraded else ended.rows
    return call.rows if ended.reason is Reason.CANCELLED else 0


class Records:
    """Of one process."""

    def __init__(self, *, source: str, zone: str, clock: Clock) -> None:
        """`source` is the service and instance that writes them, as the audit service knows it."""
        self._source = source
        self._zone = zone
        self._clock = clock

    def begun(self, call: Call, *, model: str, training_allowed: bool) -> audit_pb2.Record:
        """All that is known of a call before it is over. `model` is its name if the registry knows that."""
        route, user = call.route, call.user
        record = audit_pb2.Record(
            id=call.request_id,
            source=self._source,
            request=audit_pb2.RequestEvent(
                request_id=call.request_id,
                tenant=call.tenant,
                key_id=call.key_id,
                model=model,
                model_version=route.model_version,
                arm=route.arm,
                operation=PREDICT,
                user=user if not user or user == call.key_id else user_pseudonym(call.tenant, user),
                trace_id=call.traceparent[3:35],
                training_allowed=training_allowed,
                zone=self._zone,
            ),
        )
        self._stamp(record)
        return record

    def end(
        self,
        record: audit_pb2.Record,
        call: Call,
        ended: Answer | WeirError,
        *,
        rank: int,
        rows: int,
        spend: int,
        local: bool = False,
    ) -> None:
        """It is over. `local`: its quota was this process's own share of it."""
        event = record.request
        event.outcome, event.queue_class = outcome_of(ended), class_of(rank)
        if isinstance(ended, Answer):
            event.model_version = ended.version
            if ended.degraded:
                event.degraded.extend(ended.degraded)
        else:
            event.reason = ended.reason.name
        if local:
            event.degraded.append("quota_local")
        event.rows, event.spend_microusd = rows, spend
        spent = int((self._clock.monotonic() - call.arrived) * _SECOND)
        event.duration.seconds, event.duration.nanos = divmod(max(0, spent), _SECOND)
        tenants.count(event, self._clock.monotonic())
        self._stamp(record)

    def lease(self, name: str, *, tenant: str, model: str, version: str) -> audit_pb2.Record:
        """The opening of what calls draw from."""
        event = audit_pb2.RequestEvent(tenant=tenant, model=model, model_version=version, operation=LEASE)
        return audit_pb2.Record(id=name, source=self._source, request=event)

    def _stamp(self, record: audit_pb2.Record) -> None:
        now = self._clock.time()
        record.time.seconds = seconds = int(now)
        record.time.nanos = int((now - seconds) * _SECOND)


def class_of(rank: int) -> str:
    """A rank as records have it: "paid", "over_quota" …"""
    return Rank(rank).name.lower()
