"""Hundreds of workers, thousands of tenants, two versions of which one is full: a decision looks at few of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.admission.policy import fleet as fleet_module
from services.admission.policy.candidates import FEW
from services.admission.policy.fair_queue import FairQueue, Flow, Item, Lane
from services.admission.policy.fleet import Fleet
from services.admission.policy.limits import Ejection, Limits
from services.admission.policy.model import (
    Granted,
    QueueClass,
    Queued,
    Report,
    Request,
    WorkerSpec,
)
from services.admission.policy.pool import Pool
from services.admission.policy.service_curve import ServiceCurve
from services.admission.policy.worker import Worker
from tests.support.admission_limits import steady

SPEC = WorkerSpec("w0", "", "a", frozenset({"m@1"}), 16, 1000, 4, 4096)
ASKED = Request("r0", "acme", "m@1", 100, 60, 1, deadline=1e9, queue_class=QueueClass.PAID)
LIMITS = steady(max_per_class=10**6, max_queued=10**6)


def pool_of(*specs: WorkerSpec, limits: Limits = LIMITS) -> Pool:
    made = Pool("p", limits, now=0.0)
    for spec in specs:
        made.worker_joined(spec, 0.0)
        made.worker_reported(spec.worker, Report(spec.total_blocks), 0.0)
    return made


def ask(pool: Pool, name: str, now: float = 1.0, **more: object) -> Granted | Queued:
    answer, events = pool.admit(replace(ASKED, request_id=name, **more), now)
    assert not events
    assert isinstance(answer, Granted | Queued)
    return answer


# ---- D1: what a pass looks at ----------------------------------------------------------------------------------------


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many heads, and how many workers, were looked at."""
    seen = Counter[str]()
    head, room = Flow.head, Worker.room

    def counted_head(self: Flow, lane: Lane) -> Item:
        seen["heads"] += 1
        return head(self, lane)

    def counted_room(self: Worker, now: float) -> object:
        seen["rooms"] += 1
        return room(self, now)

    monkeypatch.setattr(Flow, "head", counted_head)
    monkeypatch.setattr(Worker, "room", counted_room)
    return seen


def test_d1_a_version_whose_workers_are_full_costs_another_version_nothing(looked_at: Counter[str]) -> None:
    """Every canary under load: a thousand tenants wait for one version, the other has room."""
    pool = pool_of(SPEC, replace(SPEC, worker="w1", model_versions=frozenset({"m@2"})))
    for number in range(4):
        assert isinstance(ask(pool, f"full{number}"), Granted)
    for number in range(1000):
        assert isinstance(ask(pool, f"q{number}", tenant=f"t{number}"), Queued)
    looked_at.clear()
    pool.worker_reported("w1", Report(1000), 2.0)
    assert isinstance(ask(pool, "canary", 2.0, model_version="m@2"), Granted)
    pool.release("canary", 2.1, output_tokens=3)
    pool.tick(2.2)
    assert looked_at["heads"] <= 4  # the canary's own
    granted = pool.release("full0", 3.0, output_tokens=3)[1]
    assert [event.request.request_id for event in granted if isinstance(event, Granted)] == ["q0"]


def test_d1_of_those_that_fit_nowhere_the_first_few_are_tried(looked_at: Counter[str]) -> None:
    """A few blocks are free, and a thousand large requests wait: overtaking them has its bound."""
    pool = pool_of(replace(SPEC, total_blocks=100, max_running=50))
    assert isinstance(ask(pool, "big", prompt_tokens=1200, max_output_tokens=300), Granted)
    for number in range(1000):
        ask(pool, f"q{number}", tenant=f"t{number}", prompt_tokens=300 + number % 7, max_output_tokens=200)
    looked_at.clear()
    pool.worker_reported("w0", Report(6, running=1), 2.0)
    assert looked_at["heads"] <= 40


def test_whoever_is_at_its_own_budget_is_not_looked_at_until_it_has_some_left(looked_at: Counter[str]) -> None:
    pool = pool_of(replace(SPEC, total_blocks=2000, max_running=500))
    for number in range(100):  # each of them holds its whole budget
        assert isinstance(ask(pool, f"held{number}", tenant=f"t{number}", kv_share=0.005), Granted)
    for number in range(100):
        assert isinstance(ask(pool, f"more{number}", tenant=f"t{number}", kv_share=0.005), Queued)
    pool.tick(1.5)
    looked_at.clear()
    assert isinstance(ask(pool, "other", 1.6, tenant="other"), Granted)
    assert looked_at["heads"] <= 2
    events = pool.release("held7", 1.7, output_tokens=3)[1]
    assert [event.request.request_id for event in events if isinstance(event, Granted)] == ["more7"]
    assert looked_at["heads"] <= 4


# ---- D7: hundreds of workers -----------------------------------------------------------------------------------------


def many(count: int, **more: object) -> list[WorkerSpec]:
    return [replace(SPEC, worker=f"w{number:03}", **more) for number in range(count)]


def test_d7_of_hundreds_of_workers_a_grant_looks_at_a_few(
    looked_at: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(*many(300))
    shown: list[int] = []
    real = fleet_module.pick

    def counted(request: Request, workers: list[Worker], *args: object, **more: object) -> Worker | None:
        shown.append(len(workers))
        return real(request, workers, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(fleet_module, "pick", counted)
    ask(pool, "first")  # sorts all of them in
    looked_at.clear()
    shown.clear()
    for number in range(100):
        assert isinstance(ask(pool, f"r{number}", prefix_hashes=(number % 9, number), prefix_block=32), Granted)
        pool.worker_reported(f"w{number:03}", Report(900), 1.0)
        pool.release(f"r{number}", 1.0, output_tokens=3)
    assert max(shown) <= 32
    assert looked_at["rooms"] <= 100 * 32


def test_d7_a_full_pool_of_hundreds_is_known_to_be_full(looked_at: Counter[str]) -> None:
    pool = pool_of(*many(300, max_running=1))
    for number in range(300):
        assert isinstance(ask(pool, f"held{number}"), Granted)
    for number in range(50):
        assert isinstance(ask(pool, f"q{number}", tenant=f"t{number}"), Queued)
    looked_at.clear()
    for number in range(50):
        pool.worker_reported(f"w{number:03}", Report(990, running=1), 1.0)
        pool.tick(1.0)
    assert looked_at["rooms"] <= 50 * 4
    assert not pool.fleet.has_room("m@1", (), 1.0)
    granted = pool.release("held150", 2.0, output_tokens=3)[1]
    assert [event.request.request_id for event in granted if isinstance(event, Granted)] == ["q0"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "release", "report", "fill", "fill", "leave", "fail", "drain", "wait"]),
        st.integers(0, 10**6),
    ),
    max_size=60,
)


@given(STEPS, st.integers(FEW + 1, FEW + 20), st.sampled_from([(), ("a",), ("a", "b"), ("b", "a")]))
@settings(deadline=None, max_examples=200)
def test_a_request_that_fits_any_of_many_workers_is_granted_one_that_it_fits(
    steps: list[tuple[str, int]], count: int, zones: tuple[str, ...]
) -> None:
    """Whatever happened before, and however time passes, the index misses nobody."""
    limits = steady(
        report_fresh=20.0,
        report_stale=30.0,
        max_prefill_wait=0.01,
        max_queued_prefill=2000,
        foreign_ttl=4.0,
        ejection=Ejection(failures=1, seconds=1.0, share=1.0),
    )
    fleet = Fleet(limits)
    for spec in many(count, total_blocks=40):
        fleet.join(replace(spec, zone="b" if spec.worker == "w004" else "a"), 0.0)
        fleet.workers[spec.worker].heard(Report(30), 0.0)
    held: list[str] = []
    now = 0.0
    for number, (kind, draw) in enumerate(steps):
        now += 0.01
        workers = list(fleet.workers.values())
        worker = workers[draw % len(workers)]
        if kind in ("release", "fail") and held:
            name = held.pop(draw % len(held))
            fleet.ended(name, now, output_tokens=1, failed=kind == "fail", cached_prompt_tokens=0)
            fleet.release(name)
        elif kind == "report":
            fleet.heard(worker.spec.worker, Report(draw % 41, running=draw % 3), now)
        elif kind == "fill":  # all but a few, which are then found among few
            for each in workers[draw % 3 :]:
                fleet.heard(each.spec.worker, Report(draw % 5), now)
        elif kind == "wait":
            now += draw % 50 / 10
        elif kind == "leave":
            if not fleet.leave(worker.spec.worker):
                fleet.join(worker.spec, now)
        elif kind == "drain":
            fleet.drain(worker.spec.worker)
        else:
            asked = replace(
                ASKED,
                request_id=f"r{number}",
                prompt_tokens=1 + draw % 400,
                max_output_tokens=1 + draw % 100,
                zones=zones,
                prefix_hashes=(draw % 3, draw % 5)[: draw % 3],
                prefix_block=32,
            )
            fitting = [each.spec.worker for each in fleet.eligible(asked) if fleet.fits(asked, each, now)]
            found = fleet.pick(asked, now)
            if found is None:
                assert not fitting
            else:
                assert found.spec.worker in fitting
                assert fleet.has_room("m@1", zones, now)
                fleet.reserve(asked, found.spec.worker, now)
                held.append(asked.request_id)


@pytest.mark.parametrize("why", ["prefill", "foreign", "ejected"])
def test_room_that_comes_back_with_time_alone_is_found(why: str) -> None:
    """Nothing is told of any of the workers in between."""
    ejection = Ejection(failures=1, seconds=5.0, share=1.0)
    fleet = Fleet(steady(max_prefill_wait=0.02, prefill_settle=5.0, foreign_ttl=5.0, ejection=ejection))
    for spec in many(40, total_blocks=100):
        fleet.join(spec, 0.0)
        fleet.workers[spec.worker].heard(Report(100), 0.0)
    for number, name in enumerate(fleet.workers):
        output = 1100 if why == "foreign" else 1
        asked = replace(ASKED, request_id=f"r{number}", prompt_tokens=400, max_output_tokens=output)
        fleet.reserve(asked, name, 0.0)
        if why == "foreign":
            fleet.disown([asked.request_id], 0.0)
        elif why == "ejected":
            fleet.ended(asked.request_id, 0.0, output_tokens=0, failed=True, cached_prompt_tokens=0)
    asked = replace(ASKED, request_id="next")
    tight = [name for name, worker in fleet.workers.items() if not fleet.fits(asked, worker, 0.1)]
    assert len(tight) >= 39  # one may be left: the last in use is never ejected
    for name in fleet.workers.keys() - set(tight):
        fleet.drain(name)
    assert fleet.pick(asked, 0.1) is None
    assert not fleet.has_room("m@1", (), 0.1)
    assert fleet.pick(asked, 5.1) is not None
    assert fleet.has_room("m@1", (), 5.1)


PREFIXES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20, unique=True)


@given(PREFIXES, st.integers(FEW - 1, FEW + 8), st.data())
@settings(deadline=None)
def test_of_many_workers_too_one_that_leaves_moves_only_what_was_on_it(
    firsts: list[int], count: int, data: st.DataObject
) -> None:
    fleet = Fleet(steady())
    for spec in many(count):
        fleet.join(spec, 0.0)
        fleet.workers[spec.worker].heard(Report(1000), 0.0)

    def picked() -> dict[str, str]:
        asked = [replace(ASKED, request_id=f"r{n}", prefix_hashes=(n, 1), prefix_block=32) for n in firsts]
        found = {each.request_id: fleet.pick(each, 1.0) for each in asked}
        return {name: worker.spec.worker for name, worker in found.items() if worker is not None}

    before = picked()
    gone = data.draw(st.sampled_from(sorted(fleet.workers)))
    fleet.leave(gone)
    after = picked()
    assert {name for name in before if before[name] != after[name]} == {n for n, on in before.items() if on == gone}


def test_a_prefix_is_found_on_one_of_hundreds() -> None:
    fleet = Fleet(LIMITS)
    for spec in many(300):
        fleet.join(spec, 0.0)
        fleet.workers[spec.worker].heard(Report(1000), 0.0)
    prompt = replace(ASKED, prompt_tokens=20 * 32 + 1, prefix_hashes=tuple(range(20)), prefix_block=32)
    fleet.reserve(prompt, "w123", 0.0)
    found = fleet.pick(replace(prompt, request_id="again"), 0.5)
    assert found is not None
    assert found.spec.worker == "w123"


def test_home_comes_first_among_hundreds_until_it_is_well_used() -> None:
    fleet = Fleet(LIMITS)
    for spec in many(200):
        fleet.join(replace(spec, zone="b" if int(spec.worker[1:]) % 2 else "a"), 0.0)
        fleet.workers[spec.worker].heard(Report(1000), 0.0)
    chosen: list[str] = []
    for number in range(800):
        asked = replace(ASKED, request_id=f"r{number}", prompt_tokens=1, zones=("a", "b"))
        found = fleet.pick(asked, 0.0)
        assert found is not None
        fleet.reserve(asked, found.spec.worker, 0.0)
        chosen.append(found.spec.zone)
    # Of four sequences three are below `zone_spill`, four are not.
    assert chosen[:300] == ["a"] * 300
    assert chosen.count("a") == chosen.count("b") == 400


# ---- D7: thousands of tenants ----------------------------------------------------------------------------------------

CHANGES = st.lists(
    st.tuples(
        st.integers(0, 30),  # tenant
        st.floats(0, 1e6),  # counter
        st.sampled_from([1e-3, 0.5, 1.0, 4.0, 1e3]),  # weight
        st.floats(1, 1e5),  # backlog
        st.integers(0, 5),  # size; 0: gone
        st.floats(0, 2e6),  # level asked for
    ),
    max_size=120,
)


@given(CHANGES)
def test_the_curve_is_the_sum_over_all_tenants(changes: list[tuple[int, float, float, float, int, float]]) -> None:
    curve = ServiceCurve()
    waiting: dict[int, tuple[float, float, float, int]] = {}
    for key, counter, weight, backlog, size, level in changes:
        if size:
            waiting[key] = counter, weight, backlog, size
            curve.put(key, counter=counter, weight=weight, backlog=backlog, size=size)
        else:
            waiting.pop(key, None)
            curve.drop(key)
        expected = sum(min(b, (level - c) * w + b / n) for c, w, b, n in waiting.values() if c <= level)
        assert curve.at(level) == pytest.approx(expected, rel=1e-6, abs=1e-3 * (1 + len(waiting)))


def _flows(count: int) -> Iterator[Item]:
    for number in range(count):
        for more in range(1 + number % 3):
            request = replace(ASKED, request_id=f"r{number}-{more}", tenant=f"t{number}", weight=1.0 + number % 4)
            yield Item(request, 10.0 + number % 13, number * 4 + more, 0.0, 1e9)


def test_d7_of_thousands_of_tenants_a_prediction_asks_those_that_have_changed() -> None:
    queue = FairQueue()
    for item in _flows(2000):
        queue.push(item)
    for _ in range(700):
        queue.dispatch(next(queue.heads(lambda _: True)).request.request_id)
    level = queue.level_of("somebody new") + 9.0
    by_hand = sum(
        min(flow.backlog, (level - flow.counter) * flow.weight + flow.backlog / flow.size)
        for flow in queue.flows()
        if flow.counter <= level
    )
    assert queue.served_until(level, besides=None) == pytest.approx(by_hand)
    queue._order = _NotToBeAsked(queue._order)
    queue.correct("t3", 1.0, 5.0)
    assert queue.served_until(level, besides=None) == pytest.approx(by_hand, abs=40.0)


class _NotToBeAsked(list[object]):
    def __iter__(self) -> Iterator[object]:
        raise AssertionError("all tenants were asked")
