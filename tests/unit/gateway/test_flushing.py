"""Output waits for company when the gateway is busy, as long as it may and no longer; its beginning and end never."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.clock import ManualClock
from services.gateway.flushing import Flushing
from services.gateway.output_buffer import OutputBuffer, SlowReaders
from services.gateway.policy.events import ChoiceUpdate, Finish
from services.gateway.policy.flushing import wait_for_company

MOST = 0.04


class Timers:
    """What would happen later."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, seconds: float, then: Callable[[], None]) -> None:
        self.set.append((seconds, then))

    def fire(self) -> list[float]:
        fired, self.set = self.set, []
        for _, then in fired:
            then()
        return [seconds for seconds, _ in fired]


class Busy:
    """A gateway that uses so much of a core."""

    def __init__(self, share: float) -> None:
        self.timers = Timers()
        self.used = 0.0
        self.flushing = Flushing(most=MOST, sweep_seconds=0.5, now=0.0, cpu=lambda: self.used, call_later=self.timers)
        self.used = 0.5 * share
        self.flushing.sweep(0.5)


class Stream(OutputBuffer):
    """Filled by a test, and read by a task."""

    def __init__(self, busy: Busy, most: float = MOST) -> None:
        readers = SlowReaders(stall=30.0, most_stream=10**9, most=10**9)
        super().__init__(
            request_id="r",
            choices=1,
            clock=ManualClock(),
            arrived=0.0,
            readers=readers,
            flushing=busy.flushing,
            flush_most=most,
        )
        self.read: list[str] = []
        self.reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        end = None
        while end is None:
            updates, _, end = await self.take()
            self.read.append("".join(map(_text, updates)))

    async def write(self, text: str) -> None:
        self._put(0, text, None, None)
        self._news()
        await settled()

    async def finish(self) -> None:
        self._close(Finish.STOP, [Finish.STOP])
        self._news()
        await self.reader


def _text(update: ChoiceUpdate) -> str:
    return update.text


async def settled() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_an_idle_gateway_holds_nothing_back() -> None:
    busy = Busy(0.2)
    stream = Stream(busy)
    await settled()
    for text in "abc":
        await stream.write(text)
    await stream.finish()
    assert stream.read == ["a", "b", "c", ""]
    assert not busy.timers.set


async def test_a_busy_one_gives_several_tokens_at_a_time_but_the_first_and_the_last_at_once() -> None:
    busy = Busy(1.0)
    streams = [Stream(busy), Stream(busy)]
    await settled()
    for text in "abc":
        for stream in streams:
            await stream.write(text)
    assert [stream.read for stream in streams] == [["a"], ["a"]]
    assert busy.timers.fire() == [MOST]  # one for all
    await settled()
    assert [stream.read for stream in streams] == [["a", "bc"], ["a", "bc"]]
    for stream in streams:
        await stream.write("d")
        await stream.finish()
        assert stream.read == ["a", "bc", "d"]
    busy.timers.fire()


async def test_a_declared_gap_between_tokens_is_kept() -> None:
    busy = Busy(1.0)
    stream = Stream(busy, most=0.01)
    await settled()
    await stream.write("a")
    await stream.write("b")
    assert busy.timers.fire() == [0.01]
    await settled()
    assert stream.read == ["a", "b"]
    await stream.finish()


@given(st.floats(0, 4), st.floats(-1, 1), st.floats(0, 0.1))
def test_the_wait_grows_with_the_load_and_is_bounded(busy: float, late: float, most: float) -> None:
    wait = wait_for_company(busy, late, most)
    assert 0.0 <= wait <= most
    assert wait <= wait_for_company(busy + 0.1, late, most)
    assert wait <= wait_for_company(busy, late + 0.01, most)


@pytest.mark.parametrize(
    ("busy", "late", "wait"), [(0.0, 0.0, 0.0), (0.25, 0.0, 0.0), (0.6, 0.0, MOST), (0.0, 0.025, 0.02)]
)
def test_an_idle_gateway_waits_for_nothing_and_a_late_one_as_long_as_it_is_late(
    busy: float, late: float, wait: float
) -> None:
    assert wait_for_company(busy, late, MOST) == pytest.approx(wait)
