"""Between an engine and its gateways: cancels are measured, interruptions handed back, refusals bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from weir.worker.v1 import worker_pb2

from libs.clock import ManualClock
from libs.deadlines import to_duration
from libs.errors import Reason, WeirError
from services.worker import metrics
from services.worker.convert import asked_of, step_frame
from services.worker.engines.port import EngineInfo, FinishReason, StepOutput
from services.worker.hub import Hub, Mailbox

INFO = EngineInfo(
    engine="fake",
    simulated=True,
    models=("m@1",),
    block_size=16,
    total_blocks=8,
    max_running=4,
    max_context=64,
    numerics={"m@1": "cafe"},
)


class Fake:
    """An engine that does what it is told by hand."""

    info = INFO

    def __init__(self) -> None:
        self.handles: list[int] = []
        self.cancelled: list[int] = []

    def submit(self, requests: Sequence[Any]) -> None:
        self.handles += [request.handle for request in requests]

    def cancel(self, handles: Sequence[int]) -> None:
        self.cancelled += handles


class Desk:
    """A hub, its engine and one gateway."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = Fake()
        self.hub = Hub(clock=self.clock, max_unread_tokens=1000)
        self.hub.attach(self.engine)  # type: ignore[arg-type]
        self.overruns = 0
        self.box = Mailbox(on_overrun=self._overrun)

    def _overrun(self) -> None:
        self.overruns += 1

    def submit(self, number: int, request_id: str, *, tenant: str = "acme", **changes: Any) -> int:
        submit = worker_pb2.Submit(
            handle=number,
            request_id=request_id,
            model_version="m@1",
            prompt=[1, 2, 3],
            sampling=worker_pb2.Sampling(max_tokens=8),
            remaining=to_duration(9),
            **changes,
        )
        self.hub.submit(self.box, [(submit, asked_of(submit))], tenant=tenant)
        return self.engine.handles[-1]

    def step(
        self, number: int, *ends: tuple[int, list[int], int], ended_before: bool = False, seconds: float = 0.0
    ) -> None:
        handles, tokens, finish = ([each[part] for each in ends] for part in range(3))
        output = StepOutput(number, handles, tokens, finish, {}, {}, {}, ended_before=ended_before)  # type: ignore[arg-type]
        output.step_seconds = seconds
        self.hub.on_step(output)


def observed(metric: Any) -> tuple[float, float]:
    """Sum and number of a histogram's observations."""
    samples = {each.name.rpartition("_")[2]: each.value for each in next(iter(metric.collect())).samples}
    return samples["sum"], samples["count"]


@pytest.mark.parametrize(
    ("at", "reported", "ended_before", "steps"), [(4, 5, False, 1), (4, 6, True, 1), (4, 5, True, 0), (4, 7, False, 3)]
)
def test_cancels_are_measured_in_steps_and_seconds(at: int, reported: int, ended_before: bool, steps: int) -> None:
    desk = Desk()
    handle = desk.submit(1, "r1")
    desk.step(at, (handle, [7], 0))
    before = observed(metrics.CANCEL_STEPS), observed(metrics.CANCEL_SECONDS)
    desk.hub.cancel(desk.box, [1])
    desk.clock.advance(0.25)
    desk.hub.cancel(desk.box, [1])  # the first one counts
    desk.clock.advance(0.25)
    desk.step(reported, (handle, [], FinishReason.CANCELLED), ended_before=ended_before)
    after = observed(metrics.CANCEL_STEPS), observed(metrics.CANCEL_SECONDS)
    assert (after[0][0] - before[0][0], after[0][1] - before[0][1]) == (steps, 1)
    assert after[1][0] - before[1][0] == pytest.approx(0.5)


def test_a_sequence_that_ends_by_itself_before_its_interruption_has_simply_ended() -> None:
    desk = Desk()
    handle = desk.submit(1, "r1")
    assert desk.hub.interrupt(["r1"]) == 1
    desk.step(0, (handle, [7], FinishReason.LENGTH))
    assert desk.box.refused == []
    assert desk.box.outbox.batch.finished == [(1, FinishReason.LENGTH, "")]


def test_an_interrupted_sequence_is_handed_back_once_with_all_that_it_made() -> None:
    desk = Desk()
    handle = desk.submit(1, "r1", group_tokens=8)
    desk.step(0, (handle, [7], 0))
    desk.step(1, (handle, [8], 0))
    assert desk.hub.interrupt(["r1"]) == 1
    assert desk.hub.interrupt(["r1"]) == 0
    assert desk.engine.cancelled == [handle]
    desk.step(2, (handle, [9], FinishReason.CANCELLED))
    assert desk.box.outbox.batch.tokens == {1: [7, 8, 9]}
    [(number, error)] = desk.box.take_refused()
    assert (number, error.reason) == (1, Reason.PREEMPTED)
    assert desk.hub.live == 0
    assert not desk.box.handles


def test_d2_admission_is_told_of_a_request_whenever_its_longest_sequence_has_doubled() -> None:
    desk = Desk()
    one, other = desk.submit(1, "r1"), desk.submit(2, "r1")
    assert desk.hub.progress == {}
    told = []
    for step, (handle, count) in enumerate([(one, 15), (one, 1), (one, 10), (other, 40), (one, 6), (one, 70)]):
        desk.step(step, (handle, [5] * count, 0))
        told.append(desk.hub.progress.get("r1", 0))
    assert told == [0, 16, 16, 32, 32, 64]
    desk.step(9, (other, [5], FinishReason.STOP))
    desk.step(10, (one, [5] * 26, 0))
    assert desk.hub.progress == {"r1": 128}
    desk.step(11, (one, [], FinishReason.CANCELLED))
    assert desk.hub.progress == {}


def test_what_its_gateway_cancelled_is_not_interrupted() -> None:
    desk = Desk()
    handle = desk.submit(1, "r1")
    desk.hub.cancel(desk.box, [1])
    assert desk.hub.interrupt(["r1"]) == 0
    desk.step(0, (handle, [], FinishReason.CANCELLED))
    assert desk.box.refused == []


def test_refusals_that_nobody_reads_are_bounded() -> None:
    desk = Desk()
    error = WeirError(Reason.INVALID_REQUEST, "no")
    desk.box.refuse([(number, error) for number in range(4096)])
    assert desk.overruns == 0
    desk.box.refuse([(4096, error)])
    assert desk.overruns == 1
    desk.hub.close(desk.box)
    desk.box.refuse([(4097, error)])
    assert desk.box.refused == []


_act = st.tuples(
    st.sampled_from(["submit", "step", "step", "step", "end", "cancel", "interrupt", "die", "read", "close"]),
    st.integers(0, 11),
    st.integers(0, 3),
)


@given(st.lists(_act, max_size=60))
def test_whatever_races_each_sequence_ends_once_after_all_its_tokens(acts: list[tuple[str, int, int]]) -> None:
    desk = Desk()
    made: dict[int, list[int]] = {}  # what the engine told of each sequence that the hub still had
    got: dict[int, list[int]] = {}
    ends: dict[int, list[str]] = {}
    running: dict[int, int] = {}  # the engine's handles → the gateway's numbers
    died: set[int] = set()  # lost their engine, or ended before and were not read yet
    steps = number = 0

    def read() -> None:
        """As a session writes: what was produced goes before what is refused."""
        refused, batch = desk.box.take_refused(), desk.box.outbox.take()
        for each, tokens in batch.tokens.items():
            assert each not in ends
            got.setdefault(each, []).extend(tokens)
        for each, reason, _ in batch.finished:
            ends.setdefault(each, []).append(reason.name)
        for each, error in refused:
            ends.setdefault(each, []).append(error.reason.name)

    def tell(handle: int, count: int, finish: int) -> None:
        nonlocal steps
        steps += 1
        desk.step(steps, (handle, list(range(count)), finish))
        if handle in running:
            made[running[handle]] += range(count)
            if finish:
                del running[handle]

    for kind, which, count in acts:
        asked = list(running)[which % len(running)] if running else 0
        if kind == "submit":
            number += 1
            handle = desk.submit(number, f"r{number // 2}", group_tokens=2 * count)
            running[handle], made[number] = number, []
        elif kind == "step":
            tell(asked, count, 0)
        elif kind == "end":
            asked_to_go = asked in desk.engine.cancelled and which % 2
            tell(asked, count, FinishReason.CANCELLED if asked_to_go else FinishReason.LENGTH)
        elif kind == "cancel":
            desk.hub.cancel(desk.box, [running.get(asked, 99), which])
        elif kind == "interrupt":
            desk.hub.interrupt([f"r{which}"])
        elif kind == "die":
            desk.hub.hand_back(WeirError(Reason.ENGINE_ERROR, "gone"))
            late, running = list(running), {}
            died |= set(made) - set(ends)
            for handle in late:  # what the dead engine still says is of no account
                tell(handle, 1, 0)
            desk.hub.attach(desk.engine)  # type: ignore[arg-type]
        elif kind == "read":
            read()
        elif which == 0:
            desk.hub.close(desk.box)
            assert set(running) <= set(desk.engine.cancelled)
            for handle in list(running):
                tell(handle, 1, FinishReason.CANCELLED)
            assert desk.box.outbox.batch.empty
            assert not desk.box.refused
            assert desk.hub.live == 0
            return
        assert desk.hub.live == len(running)
    for handle in list(running):
        tell(handle, 1, FinishReason.LENGTH)
    read()
    assert desk.hub.live == 0
    assert not desk.box.handles
    assert set(ends) == set(made)
    for each, reasons in ends.items():
        assert len(reasons) == 1
        if each in died and reasons != ["LENGTH"]:  # what was held back is made anew elsewhere
            assert made[each][: len(got.get(each, []))] == got.get(each, [])
        else:
            assert got.get(each, []) == made[each]


def test_a_first_token_says_what_the_numbers_are_known_by() -> None:
    desk = Desk()
    handle = desk.submit(7, "r")
    desk.step(1, (handle, [5], 0))
    [first] = step_frame(desk.box.outbox.take()).step.first
    assert (first.handle, first.numerics) == (7, "cafe")


def accelerator_seconds(tenant: str) -> float:
    return REGISTRY.get_sample_value("weir_tenant_accelerator_seconds_total", {"tenant": tenant}) or 0.0


def test_the_time_of_steps_is_shared_among_those_that_they_brought_tokens() -> None:
    """A prompt that takes several steps is paid for by those to whom the next step brings something."""
    desk = Desk()
    before = {tenant: accelerator_seconds(tenant) for tenant in ("hub-a", "hub-b", "ungranted")}
    a, b = desk.submit(1, "r1", tenant="hub-a"), desk.submit(2, "r2", tenant="hub-b")
    nobody = desk.submit(3, "r3", tenant="ungranted/r3")
    desk.step(0, seconds=1.0)
    desk.step(1, (a, [7], 0), (b, [7], 0), seconds=1.0)
    desk.step(2, (a, [7], FinishReason.LENGTH), (b, [], FinishReason.CANCELLED), seconds=0.25)
    desk.step(3, (nobody, [7, 8], FinishReason.LENGTH), seconds=0.5)
    gained = {tenant: accelerator_seconds(tenant) - value for tenant, value in before.items()}
    assert gained == {"hub-a": 1.25, "hub-b": 1.0, "ungranted": 0.5}


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=20))
def test_what_tenants_used_is_what_the_engine_took(steps: list[list[bool]]) -> None:
    desk = Desk()
    tenants = [f"hub-{each}" for each in range(3)]
    before = sum(map(accelerator_seconds, tenants))
    handles = [desk.submit(number, f"r{number}", tenant=tenant) for number, tenant in enumerate(tenants)]
    for number, who in enumerate(steps):
        desk.step(number, *[(handle, [7], 0) for handle, on in zip(handles, who, strict=True) if on], seconds=0.5)
    desk.step(len(steps), *[(handle, [7], FinishReason.LENGTH) for handle in handles], seconds=0.5)
    used = sum(map(accelerator_seconds, tenants)) - before
    assert used == pytest.approx(0.5 * (len(steps) + 1), abs=1e-6)
