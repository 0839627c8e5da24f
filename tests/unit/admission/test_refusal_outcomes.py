"""Every way to be refused: what the caller is told, in metrics' words and the wire's, and when to come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from weir.errors.v1 import errors_pb2

from libs.errors import Reason
from services.admission import convert
from services.admission.policy.model import (
    Event,
    Granted,
    Outcome,
    QueueClass,
    Refused,
    Report,
    Request,
    WorkerSpec,
)
from services.admission.policy.pool import Pool
from services.admission.policy.refusals import MAX_RETRY_AFTER, MIN_RETRY_AFTER, Refusals, Turns
from tests.support.admission_limits import all_ttls, steady

SPEC = WorkerSpec("w0", "127.0.0.1:1", "zone-a", frozenset({"m@1"}), 16, 1000, 1, 512)
REQUEST = Request("r", "acme", "m@1", 10, 10, 1, 1000.0, QueueClass.PAID)


def pool(**limits: object) -> Pool:
    """One sequence, taken by "full" from the start."""
    made = Pool("fast", steady(**limits), now=0.0)  # type: ignore[arg-type]
    made.worker_joined(SPEC, 0.0)
    made.worker_reported("w0", Report(1000, decode_step=0.02, prefill_tokens_per_second=1000.0), 0.0)
    assert isinstance(made.admit(replace(REQUEST, request_id="full", tenant="filler"), 0.0)[0], Granted)
    return made


def only(events: list[Event]) -> Refused:
    (event,) = events
    assert isinstance(event, Refused)
    return event


def asked(target: Pool, request: Request = REQUEST, now: float = 0.1) -> Refused:
    answer, _ = target.admit(request, now)
    assert isinstance(answer, Refused)
    return answer


def waiting(target: Pool, request: Request = REQUEST) -> Pool:
    target.admit(request, 0.0)
    assert len(target.backlog) == 1
    return target


def invalid() -> Refused:
    return asked(pool(), replace(REQUEST, request_id="full"))


def too_long() -> Refused:
    return asked(pool(), replace(REQUEST, prompt_tokens=600))


def never_fits() -> Refused:
    return asked(pool(), replace(REQUEST, choices=2))


def nobody_serves() -> Refused:
    return asked(pool(), replace(REQUEST, model_version="m@2"), now=6.0)


def tenant_full() -> Refused:
    return asked(waiting(pool(max_per_tenant=1)), replace(REQUEST, request_id="s"))


def class_full() -> Refused:
    return asked(waiting(pool(max_per_class=1)), replace(REQUEST, request_id="s", tenant="other"))


def all_full() -> Refused:
    return asked(waiting(pool(max_queued=1)), replace(REQUEST, request_id="s", queue_class=QueueClass.BATCH))


def past_deadline() -> Refused:
    return asked(pool(), replace(REQUEST, deadline=0.1))


def deadline_too_near() -> Refused:
    return asked(pool(), replace(REQUEST, deadline=0.2))


def target_too_near() -> Refused:
    return asked(pool(), replace(REQUEST, ttft_by=0.2))


def waited_out() -> Refused:
    return only(waiting(pool(**all_ttls(3.0))).tick(3.0))


def target_passed() -> Refused:
    return only(waiting(pool(), replace(REQUEST, ttft_by=4.0)).tick(4.0))


def deadline_passed() -> Refused:
    return only(waiting(pool(), replace(REQUEST, deadline=5.0)).tick(5.0))


def shed() -> Refused:
    target = waiting(pool(max_queued=1), replace(REQUEST, queue_class=QueueClass.FREE))
    return only(target.admit(replace(REQUEST, request_id="s"), 1.0)[1])


def draining() -> Refused:
    return only(waiting(pool()).drain(1.0))


WAYS: list[tuple[Callable[[], Refused], Outcome, str, bool]] = [
    (invalid, Outcome.INVALID_REQUEST, "request_id", False),
    (too_long, Outcome.CONTEXT_LENGTH_EXCEEDED, "max_context", False),
    (never_fits, Outcome.REJECTED_NO_CAPACITY, "kv_blocks", False),
    (nobody_serves, Outcome.NO_WORKERS, "workers", True),
    (tenant_full, Outcome.REJECTED_QUEUE_FULL, "queue_per_tenant", True),
    (class_full, Outcome.REJECTED_QUEUE_FULL, "queue_per_class", True),
    (all_full, Outcome.REJECTED_QUEUE_FULL, "queue", True),
    (past_deadline, Outcome.REJECTED_DEADLINE, "deadline", False),
    (deadline_too_near, Outcome.REJECTED_DEADLINE, "deadline", True),
    (target_too_near, Outcome.REJECTED_DEADLINE, "ttft_target", True),
    (waited_out, Outcome.EVICTED_TTL, "queue", True),
    (target_passed, Outcome.EVICTED_TTL, "ttft_target", True),
    (deadline_passed, Outcome.EVICTED_DEADLINE, "deadline", True),
    (shed, Outcome.EVICTED_SHED, "queue", True),
    (draining, Outcome.DRAINING, "", True),
]


@pytest.mark.parametrize(("way", "outcome", "limit", "comes_back"), WAYS, ids=[way[0].__name__ for way in WAYS])
def test_a_refusal_says_why_and_when_to_come_back(
    way: Callable[[], Refused], outcome: Outcome, limit: str, comes_back: bool
) -> None:
    refused = way()
    assert (refused.outcome, refused.limit) == (outcome, limit)
    assert (refused.retry_after is not None) is comes_back
    assert refused.message.endswith(".")
    assert (refused.waited > 0.0) is (outcome.name.startswith("EVICTED") or outcome is Outcome.DRAINING)
    rejection = convert.rejected(refused).rejected
    assert errors_pb2.Reason.Name(rejection.reason) == f"REASON_{outcome.name}"
    assert rejection.limit == limit
    assert rejection.HasField("retry_after") is comes_back


def test_every_outcome_but_grants_and_cancels_is_shown_here_and_is_a_reason_of_the_wire() -> None:
    shown = {outcome for _, outcome, _, _ in WAYS}
    assert shown == set(Outcome) - {Outcome.GRANTED, Outcome.CANCELLED}
    assert all(outcome.name in Reason.__members__ for outcome in shown)


def test_times_to_come_back_are_bounded_and_jittered_upwards_only() -> None:
    draws = iter([0.0, 0.5, 1.0, 0.0, 0.0])
    refusals = Refusals(lambda: next(draws))
    told = [
        refusals.refuse(REQUEST, Outcome.EVICTED_TTL, ".", retry_after=seconds).retry_after
        for seconds in (2.0, 2.0, 2.0, 0.0, 1e9)
    ]
    assert told == [2.0, 2.5, 3.0, MIN_RETRY_AFTER, MAX_RETRY_AFTER]


def test_refused_requests_come_back_one_after_the_other() -> None:
    turns = Turns(max_tracked=2)
    assert [turns.next(REQUEST, 50.0, 100.0, 0.0) for _ in range(3)] == [0.0, 0.5, 1.0]
    assert turns.next(REQUEST, 50.0, 100.0, 1.2) == pytest.approx(0.3)
    assert max(turns.next(REQUEST, 50.0, 100.0, 2.0) for _ in range(1000)) <= 10.0
    for number in range(5):
        assert turns.next(replace(REQUEST, tenant=f"t{number}"), 50.0, 0.0, 2.0) == 0.0
    assert len(turns._until) == 2
