"""Nobody is there to serve: an outage is told as such, and what ran already waits for its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from services.admission.policy.limits import Limits
from services.admission.policy.model import (
    Event,
    Granted,
    Outcome,
    QueueClass,
    Queued,
    Refused,
    Report,
    Request,
    WorkerSpec,
)
from services.admission.policy.pool import Pool
from tests.support.admission_limits import all_ttls, steady

SPEC = WorkerSpec("w0", "127.0.0.1:1", "zone-a", frozenset({"m@1"}), 16, 100, 2, 512)


def request(name: str = "r0", tenant: str = "acme", **more: object) -> Request:
    base = Request(name, tenant, "m@1", 16, 16, 1, deadline=1000.0, queue_class=QueueClass.PAID)
    return replace(base, **more)


def pool(*specs: WorkerSpec, limits: Limits | None = None, now: float = 0.0) -> Pool:
    made = Pool("fast", limits or steady(), now=now)
    for spec in specs or (SPEC,):
        made.worker_joined(spec, now)
        made.worker_reported(spec.worker, Report(free_blocks=spec.total_blocks), now)
    return made


def fill(target: Pool, count: int = 2) -> None:
    """Takes all the sequences of the one worker."""
    for number in range(count):
        answer, _ = target.admit(request(f"full{number}", "filler"), 0.0)
        assert isinstance(answer, Granted)


def granted(events: Iterable[Event]) -> list[str]:
    return [event.request.request_id for event in events if isinstance(event, Granted)]


def refused(answer: object, outcome: Outcome) -> Refused:
    assert isinstance(answer, Refused)
    assert answer.outcome is outcome
    return answer


@pytest.mark.parametrize(
    "asked",
    [{}, {"deadline": 8.0}, {"ttft_by": 8.0}, {"queue_class": QueueClass.BATCH}],
    ids=["ttl", "deadline", "ttft_target", "batch"],
)
def test_what_waited_until_its_end_while_the_last_worker_was_away_met_an_outage(asked: dict[str, object]) -> None:
    """However it would have been told under overload."""
    target = pool(limits=steady(absence_grace=60.0, **all_ttls(8.0)))
    fill(target)
    assert isinstance(target.admit(request("waits", **asked), 0.0)[0], Queued)
    target.worker_left("w0", 1.0)
    assert isinstance(target.admit(request("new", **asked), 2.0)[0], Queued)
    ended = {event.request.request_id: event for event in target.tick(30.0) if isinstance(event, Refused)}
    assert {name: each.outcome for name, each in ended.items()} == dict.fromkeys(("waits", "new"), Outcome.NO_WORKERS)
    assert all(each.limit == "workers" and each.retry_after and each.waited for each in ended.values())


def test_a_full_queue_of_a_pool_without_workers_is_an_outage_too() -> None:
    target = pool(limits=steady(max_per_tenant=1, absence_grace=60.0))
    fill(target)
    target.admit(request("waits"), 0.0)
    refused(target.admit(request("full"), 0.5)[0], Outcome.REJECTED_QUEUE_FULL)
    target.worker_left("w0", 1.0)
    refused(target.admit(request("nobody"), 1.5)[0], Outcome.NO_WORKERS)


@pytest.mark.parametrize("away", ["draining", "silent", "unreported", "too small", "without the version"])
def test_a_worker_that_takes_nothing_serves_nobody(away: str) -> None:
    large = request("large", prompt_tokens=300, max_output_tokens=100)
    target = Pool("fast", Limits(absence_grace=60.0, **all_ttls(5.0)), now=0.0)
    for spec in (SPEC, replace(SPEC, worker="small", max_context=128)):
        target.worker_joined(spec, 0.0)
        target.worker_reported(spec.worker, Report(free_blocks=0, running=9), 0.0)
    assert isinstance(target.admit(large, 0.0)[0], Queued)
    if away == "draining":
        target.drain_worker("w0")
    elif away == "too small":
        target.worker_left("w0", 1.0)
    elif away == "without the version":
        target.worker_serves("w0", frozenset({"other@1"}), 1.0)
    elif away == "unreported":
        target.worker_joined(SPEC, 1.0)
    if away in ("draining", "without the version"):
        target.worker_reported("w0", Report(free_blocks=0, running=9), 4.9)
    assert [type(event) for event in target.tick(4.9)] == []
    refused(target.tick(5.0)[0], Outcome.NO_WORKERS)


def test_overload_is_no_outage_while_one_worker_is_left() -> None:
    target = pool(SPEC, replace(SPEC, worker="w1"), limits=steady(absence_grace=60.0, **all_ttls(8.0)))
    fill(target, 4)
    assert isinstance(target.admit(request("waits"), 0.0)[0], Queued)
    target.worker_left("w1", 1.0)
    refused(target.tick(8.0)[0], Outcome.EVICTED_TTL)


def test_an_outage_sheds_nobody_at_the_edge() -> None:
    target = pool(limits=steady(absence_grace=60.0, **all_ttls(1.0)))
    target.worker_left("w0", 0.0)
    for number in range(50):
        now = number * 0.1
        target.admit(request(f"r{number}"), now)
        target.tick(now)
    assert target.edge_shedding.tenants(5.0) == ()
    target.worker_joined(SPEC, 5.0)
    target.worker_reported("w0", Report(free_blocks=0, running=9), 5.0)
    target.admit(request("overload"), 5.0)
    refused(target.tick(6.5)[-1], Outcome.EVICTED_TTL)
    assert all(each.shed < 1.0 for each in target.edge_shedding.tenants(6.5))


def test_a_stream_that_lost_two_workers_goes_on_when_either_is_back() -> None:
    """It has tokens, and both names among those that failed it."""
    for back in ("w0", "w1"):
        target = pool(SPEC, replace(SPEC, worker="w1"))
        target.worker_left("w0", 0.0)
        lost = request("r/2", prompt_tokens=20, resumed_tokens=4, excluded=frozenset({"w0", "w1"}))
        # The gateway hears of the second loss before admission does.
        assert isinstance(target.admit(lost, 2.5)[0], Queued)
        target.worker_left("w1", 2.6)
        assert [*target.tick(8.6), *target.tick(30.0)] == []
        target.worker_joined(replace(SPEC, worker=back), 31.0)
        assert granted(target.worker_reported(back, Report(free_blocks=100), 31.0)) == ["r/2"]


def test_a_stream_that_was_failed_by_all_that_are_left_tries_them_again_after_the_grace() -> None:
    """One of them began anew before it was asked for: its name stands for its former life."""
    target = pool(SPEC, replace(SPEC, worker="w1"))
    target.worker_left("w1", 0.0)
    lost = request("r/2", prompt_tokens=20, resumed_tokens=4, excluded=frozenset({"w0", "w1"}))
    assert isinstance(target.admit(lost, 1.0)[0], Queued)
    assert target.tick(4.5) == []
    assert granted(target.tick(6.5)) == ["r/2"]


def test_a_stream_waits_for_a_worker_longer_than_new_requests_and_not_beyond_its_deadline() -> None:
    target = pool()
    target.worker_left("w0", 0.0)
    refused(target.admit(request("new"), 20.0)[0], Outcome.NO_WORKERS)
    assert isinstance(target.admit(request("old", prompt_tokens=20, resumed_tokens=4, deadline=60.0), 20.0)[0], Queued)
    assert target.tick(59.0) == []
    refused(target.tick(60.0)[0], Outcome.NO_WORKERS)
