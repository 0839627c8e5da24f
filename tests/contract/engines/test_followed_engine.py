"""What `FollowedEngine` does for every library behind it, on a library whose every step the test makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from engine_cases import CLOCK, MODEL, request

from services.worker.engines.followed import EmbeddingUnsupportedError, FollowedEngine
from services.worker.engines.library import Delta, Load, RequestRefusedError, token_logprobs
from services.worker.engines.port import Capacity, EngineInfo, FinishReason, SequenceRequest, StepOutput


class Library:
    """Streams that the test feeds; `step` hands what is new to several streams in one turn of the loop."""

    info = EngineInfo(
        engine="scripted",
        simulated=False,
        models=(MODEL,),
        block_size=4,
        total_blocks=64,
        max_running=4,
        max_context=64,
    )

    def __init__(self) -> None:
        self.streams: dict[int, asyncio.Queue[Delta | Exception]] = {}
        self.aborted: list[int] = []
        self.closed = 0
        self.closing = asyncio.Event()
        self.freeing = asyncio.Event()
        self.freeing.set()
        self.fail: Callable[[BaseException], None] = lambda error: None

    async def load(self, on_failure: Callable[[BaseException], None]) -> None:
        self.fail = on_failure

    def problem(self, request: SequenceRequest) -> str:
        return "an odd prompt" if request.prompt[0] == 13 else ""

    async def generate(self, request: SequenceRequest, room: int) -> AsyncGenerator[Delta, None]:
        queue = self.streams[request.handle] = asyncio.Queue()
        finished = False
        try:
            while not finished:
                delta = await queue.get()
                if isinstance(delta, Exception):
                    raise delta
                finished = delta.finish is not None
                yield delta
        finally:
            if not finished:
                self.closing.set()
                await self.freeing.wait()
                self.aborted.append(request.handle)

    def capacity(self, load: Load) -> Capacity:
        return Capacity(
            free_blocks=64 - load.reserved_blocks,
            running=load.started,
            waiting=load.unstarted,
            queued_prefill_tokens=load.queued_prefill_tokens,
            last_step_seconds=load.last_step_seconds,
        )

    async def close(self) -> None:
        self.closed += 1

    def step(self, **news: Delta | Exception) -> None:
        for name, delta in news.items():
            self.streams[int(name[1:])].put_nowait(delta)


class Rig:
    """A started engine over a scripted library, and its frames."""

    def __init__(self) -> None:
        self.library = Library()
        self.failures: list[BaseException] = []
        self.engine = FollowedEngine(self.library, clock=CLOCK, on_failure=self.failures.append)
        self.frames: asyncio.Queue[StepOutput] = asyncio.Queue()

    async def submit(self, *requests: SequenceRequest) -> None:
        """Submit and wait until their streams are open."""
        self.engine.submit(requests)
        await self.turns()

    async def turns(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def rig() -> Any:
    made = Rig()
    await made.engine.start(made.frames.put_nowait)
    yield made
    made.library.freeing.set()
    await made.engine.stop()
    assert made.library.closed == 1


async def test_what_comes_in_one_turn_is_one_frame(rig):
    await rig.submit(*(request(handle) for handle in range(3)))
    rig.library.step(_0=Delta([5], cached=2), _1=Delta([6]), _2=Delta([7], FinishReason.STOP))
    frame = await rig.frames.get()
    assert (frame.handles, frame.tokens, frame.finish) == ([0, 1, 2], [[5], [6], [7]], [0, 0, FinishReason.STOP])
    assert frame.prompt_tokens_cached == {0: 2, 1: 0, 2: 0}
    rig.library.step(_0=Delta([8, 9], cached=2))
    frame = await rig.frames.get()
    assert (frame.handles, frame.tokens, frame.prompt_tokens_cached) == ([0], [[8, 9]], {})
    assert rig.frames.empty()


async def test_refusals_of_every_kind_reach_their_sequence_alone(rig):
    await rig.submit(request(1), request(2, [13]), request(3), request(4))
    rig.library.step(_1=Delta([5]), _3=RequestRefusedError("no such flavour"), _4=KeyError("inner secret"))
    errors: dict[int, str] = {}
    while len(errors) < 3:
        errors |= (await rig.frames.get()).errors
    assert errors == {2: "an odd prompt", 3: "no such flavour", 4: "the engine failed on this sequence"}
    assert rig.engine.capacity().running == 1


async def test_a_cancel_closes_the_stream_and_drops_what_it_still_says(rig):
    await rig.submit(request(1), request(2))
    rig.library.step(_1=Delta([5]), _2=Delta([6]))
    await rig.frames.get()
    rig.library.step(_1=Delta([7]))
    rig.engine.cancel([1])
    frame = await rig.frames.get()
    assert (frame.handles, frame.tokens, frame.finish) == ([1], [[]], [FinishReason.CANCELLED])
    await rig.turns()
    assert rig.library.aborted == [1]
    assert rig.frames.empty()
    assert rig.engine.capacity() == Capacity(
        free_blocks=61, running=1, waiting=0, queued_prefill_tokens=0, last_step_seconds=frame_seconds(rig)
    )


def frame_seconds(rig: Rig) -> float:
    return rig.engine.capacity().last_step_seconds


async def test_a_cancel_before_the_stream_opened_leaves_nothing_behind(rig):
    rig.engine.submit([request(1)])
    rig.engine.cancel([1])
    frame = await rig.frames.get()
    assert frame.finish == [FinishReason.CANCELLED]
    await rig.turns()
    assert rig.library.streams == {}
    assert rig.engine.capacity().free_blocks == 64


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.DEADLINE])
async def test_e5_an_end_is_told_once_the_library_has_freed_the_memory(rig, reason):
    deadline = CLOCK.monotonic() + 0.01 if reason is FinishReason.DEADLINE else None
    rig.library.freeing.clear()
    await rig.submit(request(1, deadline=deadline), request(2))
    rig.library.step(_1=Delta([5]), _2=Delta([6]))
    await rig.frames.get()
    if reason is FinishReason.CANCELLED:
        rig.engine.cancel([1])
    await rig.library.closing.wait()
    rig.engine.cancel([1])  # whoever asks again is told nothing new
    rig.library.step(_2=Delta([7]))
    assert (await rig.frames.get()).handles == [2]
    assert rig.engine.capacity().free_blocks == 64 - 2 * 3
    rig.library.freeing.set()
    frame = await rig.frames.get()
    assert (frame.handles, frame.finish, rig.library.aborted) == ([1], [reason], [1])
    assert rig.engine.capacity().free_blocks == 64 - 3


async def test_e4_a_failure_of_the_library_is_told_from_a_refusal(rig):
    await rig.submit(request(1), request(2, [13]), request(3), request(4))
    rig.library.step(_3=RequestRefusedError("no such flavour"), _4=KeyError("inner secret"))
    ended: dict[int, bool] = {}
    while len(ended) < 3:
        frame = await rig.frames.get()
        ended |= {handle: handle in frame.faults for handle in frame.handles}
    assert ended == {2: False, 3: False, 4: True}


async def test_only_the_late_one_of_two_deadlines_passes(rig):
    now = CLOCK.monotonic()
    await rig.submit(request(1, deadline=now + 0.01), request(2, deadline=now + 3600), request(3, deadline=now - 1))
    frames = [await rig.frames.get(), await rig.frames.get()]
    assert [(frame.handles, frame.finish) for frame in frames] == [
        ([3], [FinishReason.DEADLINE]),
        ([1], [FinishReason.DEADLINE]),
    ]
    assert CLOCK.monotonic() >= now + 0.01
    await rig.turns()
    assert rig.library.aborted == [1]
    assert 3 not in rig.library.streams


async def test_a_dead_library_is_reported_once_and_ends_everything(rig):
    await rig.submit(request(1), request(2))
    dead = RuntimeError("gone")
    rig.library.fail(dead)
    rig.library.fail(RuntimeError("still gone"))
    frame = await rig.frames.get()
    assert (frame.handles, frame.finish) == ([1, 2], [FinishReason.ERROR] * 2)
    assert set(frame.errors.values()) == {"the engine failed"}
    assert rig.failures == [dead]
    rig.engine.submit([request(3)])
    assert (await rig.frames.get()).errors == {3: "the engine failed"}


async def test_a_failure_is_told_before_the_sequences_end(rig):
    """So that a supervisor can hand them back: streams that broke in the same turn end after it too."""
    told: list[str] = []
    engine = FollowedEngine(rig.library, clock=CLOCK, on_failure=lambda error: told.append("failure"))
    await engine.start(lambda output: told.extend(f"end of {handle}" for handle in output.handles))
    engine.submit([request(1), request(2)])
    await rig.turns()
    rig.library.step(_1=RuntimeError("gone"))
    asyncio.get_running_loop().call_soon(rig.library.fail, RuntimeError("gone"))
    await rig.turns()
    assert told == ["failure", "end of 1", "end of 2"]
    await engine.stop()
    rig.library.closed = 0


async def test_stop_is_no_failure_and_waits_for_the_streams(rig):
    await rig.submit(request(1))
    await asyncio.gather(rig.engine.stop(), rig.engine.stop())
    rig.library.fail(RuntimeError("its processes have ended"))
    assert rig.failures == []
    assert rig.library.aborted == [1]
    assert (await rig.frames.get()).finish == [FinishReason.CANCELLED]
    rig.engine.submit([request(2)])
    assert (await rig.frames.get()).errors == {2: "the engine takes no more work"}


async def test_embeddings_are_refused_by_a_type_of_their_own(rig):
    with pytest.raises(EmbeddingUnsupportedError, match="scripted engine"):
        await rig.engine.embed(MODEL, [[1]])


class Entry:
    def __init__(self, logprob: float) -> None:
        self.logprob = logprob


@pytest.mark.parametrize(("wanted", "expected"), [(None, []), (0, [(-3.0, [])]), (2, [(-3.0, [(8, -0.5), (7, -1.0)])])])
def test_the_chosen_token_is_among_the_best_only_if_it_is_one_of_them(wanted, expected):
    entry = {5: Entry(-3.0), 7: Entry(-1.0), 8: Entry(-0.5)}
    assert [(each.logprob, each.top) for each in token_logprobs(wanted, [5], [entry])] == expected
