"""Between an engine and its gateways: cancels are measured, interruptions handed back, refusals bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from weir.worker.v1 import worker_pb2

from libs.clock import ManualClock
from libs.deadlines import to_duration
from libs.errors import Reason, WeirError
from services.worker import metrics
from services.worker.convert import asked_of
from services.worker.engines.port import EngineInfo, FinishReason, StepOutput
from services.worker.hub import Hub, Mailbox

INFO = EngineInfo(
    engine="fake", simulated=True, models=("m@1",), block_size=16, total_blocks=8, max_running=4, max_context=64
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

    def submit(self, number: int, request_id: str, **changes: Any) -> int:
        submit = worker_pb2.Submit(
            handle=number,
            request_id=request_id,
            model_version="m@1",
            prompt=[1, 2, 3],
            sampling=worker_pb2.Sampling(max_tokens=8),
            remaining=to_duration(9),
            **changes,
        )
        self.hub.submit(self.box, [(submit, asked_of(submit))], tenant="acme")
        return self.engine.handles[-1]

    def step(self, number: int, *ends: tuple[int, list[int], int], ended_before: bool = False) -> None:
        handles, tokens, finish = ([each[part] for each in ends] for part in range(3))
        self.hub.on_step(
            StepOutput(number, handles, tokens, finish, {}, {}, {}, ended_before=ended_before)  # type: ignore[arg-type]
        )


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
