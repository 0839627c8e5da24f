"""What a face reads is what was written, in turns, and what is unread is counted exactly."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from libs.clock import ManualClock
from services.gateway import metrics
from services.gateway.output_buffer import TURN, OutputBuffer, SlowReaders
from services.gateway.policy.answers import Answer
from services.gateway.policy.events import End, Finish, Logprob
from services.gateway.recording import Joined, Recording
from services.gateway.replay import Replay

PART = st.tuples(st.integers(0, 2), st.integers(0, 3 * TURN // 2), st.booleans())
LOGPROB = Logprob("x", b"x", -1.0)


class Written(OutputBuffer):
    """A buffer that a test fills."""

    def write(self, index: int, text: str, *, logprobs: bool = False, finish: Finish | None = None) -> None:
        self._put(index, text, [LOGPROB] if logprobs else None, finish)
        self._wake()

    def finish(self) -> None:
        self._close(Finish.STOP, [Finish.STOP] * self.width)
        self._wake()


def _readers() -> SlowReaders:
    return SlowReaders(stall=30.0, most_stream=10**9, most=10**9)


def _buffer(readers: SlowReaders) -> Written:
    return Written(request_id="r", choices=3, clock=ManualClock(), arrived=0.0, readers=readers)


async def _read(buffer: OutputBuffer, said: dict[int, str]) -> tuple[int, End | None]:
    """One turn; how much it brought."""
    updates, _, end = await buffer.take()
    for update in updates:
        said[update.index] += update.text
    return sum(len(update.text) for update in updates), end


@given(st.lists(st.one_of(PART, st.none()), max_size=12))
async def test_every_character_comes_once_in_turns_and_the_end_last(script: list[tuple[int, int, bool] | None]) -> None:
    """`None` is a turn of the reader."""
    readers = _readers()
    buffer = _buffer(readers)
    wrote: dict[int, str] = defaultdict(str)
    said: dict[int, str] = defaultdict(str)
    for number, part in enumerate(script):
        if part is not None:
            index, length, logprobs = part
            text = chr(97 + number) * length
            wrote[index] += text
            buffer.write(index, text, logprobs=logprobs)
        elif buffer._pending:
            await _read(buffer, said)
        left = sum(map(len, wrote.values())) - sum(map(len, said.values()))
        assert readers.unread == buffer.unread >= left
    buffer.finish()
    end = None
    while end is None:
        _, end = await _read(buffer, said)
    assert {k: v for k, v in said.items() if v} == {k: v for k, v in wrote.items() if v}
    buffer.left()
    assert readers.unread == 0


async def test_what_a_reader_took_is_told_until_the_end_and_not_of_whoever_has_the_place_then() -> None:
    buffer, told = _buffer(_readers()), list[int]()
    buffer.on_taken = told.append
    for number in range(1, 4):
        buffer.write(0, "a")
        buffer.usage.completion_tokens = number
        if number == 3:
            buffer.finish()
        await buffer.take()
    assert told == [1, 2]


async def nothing(end: object) -> None:
    """Is to be done before an answer's end is told."""


async def test_of_what_is_written_down_only_what_somebody_has_got_is_told() -> None:
    buffer, told = _buffer(_readers()), list[int]()
    buffer.on_taken, buffer.accepted = told.append, None  # type: ignore[assignment]
    recording = Recording()
    recorded = asyncio.create_task(recording.record(buffer, lambda size: None, nothing))
    await recording.opened
    said = defaultdict[int, str](str)
    reader = Joined(recording, request_id="r", replayed=False, at=(), clock=ManualClock(), readers=_readers())

    async def write(tokens: int, size: int) -> None:
        before = len(recording.choices[0].text)
        buffer.usage.completion_tokens = tokens
        buffer.write(0, "a" * size)
        while len(recording.choices[0].text) < before + size:  # noqa: ASYNC110 - a turn of the other task
            await asyncio.sleep(0)

    await write(1, 1)
    assert told == []
    await _read(reader, said)
    await write(9, 2 * TURN)
    await _read(reader, said)
    assert told == [1]  # it has some of it
    while reader._pending:
        await _read(reader, said)
    await write(12, 1)
    assert told == [1, 9]
    buffer.finish()
    await recorded
    await _read(reader, said)
    assert told == [1, 9]


async def test_a_greedy_stream_gets_a_turn_at_a_time() -> None:
    buffer = _buffer(_readers())
    buffer.write(0, "a" * (2 * TURN), finish=Finish.STOP)
    buffer.write(1, "b" * 10, finish=Finish.LENGTH)
    buffer.finish()
    turns: list[list[tuple[int, int, Finish | None]]] = []
    end = None
    while end is None:
        updates, _, end = await buffer.take()
        turns.append([(update.index, len(update.text), update.finish) for update in updates])
    assert turns == [[(0, TURN, None)], [(0, TURN, Finish.STOP)], [(1, 10, Finish.LENGTH)]]


async def test_what_is_being_written_is_unread_until_the_reader_comes_back() -> None:
    buffer = _buffer(_readers())
    buffer.write(0, "abc")
    await buffer.take()
    assert buffer.unread == 3
    assert not buffer.reader_waits
    waiting = asyncio.ensure_future(buffer.take())
    await asyncio.sleep(0)
    assert buffer.unread == 0
    assert buffer.reader_waits
    buffer.finish()
    assert (await waiting)[2] is not None


async def test_a_reader_that_waited_long_has_not_stalled_when_something_comes() -> None:
    clock = ManualClock()
    readers = SlowReaders(stall=30.0, most_stream=10**9, most=10**9)
    buffer = Written(request_id="r", choices=3, clock=clock, arrived=0.0, readers=readers)

    async def read() -> End | None:
        with readers.reading(buffer):
            await buffer.take()
            return (await buffer.take())[2]

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    clock.advance(100.0)
    buffer.write(0, "abc")
    readers.sweep(clock.monotonic())  # before the reader has had its turn
    assert buffer.error is None
    buffer.finish()
    assert await reading is not None


async def test_a_replayed_answer_is_there_at_once() -> None:
    readers = _readers()
    answer = Answer((("ab", Finish.STOP), ("cd", Finish.LENGTH)), prompt_tokens=3, completion_tokens=4, simulated=True)
    replay = Replay(
        answer, request_id="r", clock=ManualClock(), arrived=0.0, readers=readers, degraded=["cached_answer"]
    )
    updates, _, end = await replay.take()
    assert [(u.text, u.finish) for u in updates] == [("ab", Finish.STOP), ("cd", Finish.LENGTH)]
    assert end is not None
    assert (end.finish, end.degraded, end.usage.completion_tokens) == (Finish.LENGTH, ("cached_answer",), 4)
    replay.stop(Finish.CANCELLED)
    assert replay.end is end
    replay.left()
    assert readers.unread == 0


def _writes() -> tuple[float, float]:
    """How many answers were written, and the seconds that it took."""
    return sum(metrics.WRITE.counts), metrics.WRITE.total


async def test_what_a_reader_takes_to_take_an_answer_is_the_time_between_its_turns() -> None:
    clock, readers, before = ManualClock(), _readers(), _writes()
    buffer = Written(request_id="r", choices=1, clock=clock, arrived=0.0, readers=readers)
    with readers.reading(buffer):
        for seconds in (2.0, 3.0):
            buffer.write(0, "some")
            await buffer.take()
            clock.advance(seconds)
        took = asyncio.ensure_future(buffer.take())
        await asyncio.sleep(0)
        clock.advance(50.0)  # there is nothing to write
        buffer.write(0, "more")
        buffer.finish()
        await took
        clock.advance(5.0)
    count, seconds = _writes()
    assert (count - before[0], seconds - before[1]) == (1, 10.0)
