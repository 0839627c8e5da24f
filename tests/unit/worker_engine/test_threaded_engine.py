"""A core in a thread: delivery, waking, cancelling, failing, stopping."""

import asyncio
import threading
from collections import deque

import pytest

from services.worker.engines.driven import EngineStoppedError
from services.worker.engines.port import (
    Capacity,
    EngineInfo,
    EngineLoadError,
    FinishReason,
    SamplingParams,
    SequenceRequest,
    StepOutput,
)
from services.worker.engines.threaded import ThreadedEngine


def req(handle, count=3):
    return SequenceRequest(handle=handle, model="m@1", prompt=[handle, 1], params=SamplingParams(max_tokens=count))


class CountingCore:
    """Emits 0, 1, 2 … for each sequence. `gate`, when cleared, holds the next step."""

    def __init__(self):
        self.live: dict[int, list[int]] = {}  # handle → [next token, limit]
        self.cancelled: deque[int] = deque()
        self.gate = threading.Event()
        self.gate.set()
        self.load_error = None
        self.step_error = None
        self.steps = 0
        self.closed = 0
        self.threads: set[int] = set()

    def changes(self):
        return ()

    @property
    def info(self):
        return EngineInfo(
            engine="counting",
            simulated=True,
            models=("m@1",),
            block_size=1,
            total_blocks=9,
            max_running=9,
            max_context=9,
        )

    def load(self):
        self.threads.add(threading.get_ident())
        if self.load_error:
            raise self.load_error

    def add(self, requests):
        self.live.update({each.handle: [0, each.params.max_tokens] for each in requests})

    def cancel(self, handles):
        self.cancelled += [handle for handle in handles if self.live.pop(handle, None)]

    def has_work(self):
        return bool(self.live or self.cancelled)

    def step(self):
        self.threads.add(threading.get_ident())
        assert self.gate.wait(30)
        if self.step_error:
            raise self.step_error
        output = StepOutput(self.steps, [], [], [], {}, {}, {})
        self.steps += 1
        while self.cancelled:
            output.handles.append(self.cancelled.popleft())
            output.tokens.append([])
            output.finish.append(FinishReason.CANCELLED)
        for handle, state in list(self.live.items()):
            output.handles.append(handle)
            output.tokens.append([state[0]])
            state[0] += 1
            output.finish.append(FinishReason.LENGTH if state[0] == state[1] else 0)
            if state[0] == state[1]:
                del self.live[handle]
        return output

    def capacity(self):
        return Capacity(
            free_blocks=9 - len(self.live),
            running=len(self.live),
            waiting=0,
            queued_prefill_tokens=0,
            last_step_seconds=0.0,
        )

    def embed(self, model, prompt):
        self.threads.add(threading.get_ident())
        if model != "m@1":
            raise EngineLoadError(f"model {model} is not loaded here")
        yield True
        return [float(len(prompt))]

    def close(self):
        self.closed += 1


class Sink:
    """Collects steps and lets a test wait for one."""

    def __init__(self):
        self.outputs: list[StepOutput] = []
        self.tokens: dict[int, list[int]] = {}
        self.finish: dict[int, int] = {}
        self._changed = asyncio.Event()

    def __call__(self, output):
        self.outputs.append(output)
        for handle, tokens, finish in zip(output.handles, output.tokens, output.finish, strict=True):
            assert handle not in self.finish
            self.tokens.setdefault(handle, []).extend(tokens)
            if finish:
                self.finish[handle] = finish
        self._changed.set()

    async def until(self, condition):
        async with asyncio.timeout(30):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def running():
    """(engine, core, sink), started; stopped at the end."""
    core, sink = CountingCore(), Sink()
    engine = ThreadedEngine(core)
    await engine.start(sink)
    yield engine, core, sink
    core.gate.set()
    await engine.stop()


async def test_every_token_arrives_in_order_on_the_loop(running):
    engine, core, sink = running
    engine.submit([req(1), req(2, 5)])
    await sink.until(lambda s: len(s.finish) == 2)
    assert sink.tokens == {1: [0, 1, 2], 2: [0, 1, 2, 3, 4]}
    assert [output.step for output in sink.outputs] == list(range(core.steps))
    assert core.threads.isdisjoint({threading.get_ident()})
    assert len(core.threads) == 1


async def test_an_idle_engine_wakes_for_each_submission(running):
    engine, _, sink = running
    for handle in range(5):
        engine.submit([req(handle, 1)])
        await sink.until(lambda s, handle=handle: handle in s.finish)


async def test_cancel_takes_effect_in_the_next_step(running):
    engine, core, sink = running
    engine.submit([req(1, 10**9)])
    await sink.until(lambda s: 1 in s.tokens)
    engine.cancel([1, 77])
    await sink.until(lambda s: 1 in s.finish)
    assert sink.finish == {1: FinishReason.CANCELLED}
    assert not core.has_work()


async def test_a_sequence_cancelled_before_its_first_step_still_has_one_outcome(running):
    engine, core, sink = running
    core.gate.clear()
    engine.submit([req(1, 10**9)])
    engine.submit([req(2, 10**9)])
    engine.cancel([2])
    core.gate.set()
    await sink.until(lambda s: 2 in s.finish)
    assert sink.finish == {2: FinishReason.CANCELLED}


async def test_capacity_counts_what_the_thread_has_not_taken_yet(running):
    engine, core, sink = running
    assert engine.capacity().free_blocks == 9
    core.gate.clear()
    engine.submit([req(1, 2)])
    engine.submit([req(2, 2), req(3, 2)])
    capacity = engine.capacity()
    # The thread holds the first one at the gate, or has not seen it yet.
    assert 2 <= capacity.waiting <= 3
    assert capacity.queued_prefill_tokens == 2 * capacity.waiting
    core.gate.set()
    await sink.until(lambda s: len(s.finish) == 3)


async def test_embeddings_run_in_the_thread_and_errors_reach_their_caller(running):
    engine, core, sink = running
    engine.submit([req(1, 10**9)])
    assert await engine.embed("m@1", [[1, 2], [3]]) == [[2.0], [1.0]]
    with pytest.raises(EngineLoadError, match="x@1"):
        await engine.embed("x@1", [[1]])
    engine.cancel([1])
    await sink.until(lambda s: 1 in s.finish)
    assert len(core.threads) == 1


async def test_stop_ends_everything_once_and_is_idempotent():
    core, sink = CountingCore(), Sink()
    engine = ThreadedEngine(core, name="stopped-soon")
    await engine.start(sink)
    engine.submit([req(1, 10**9), req(2, 10**9)])
    await sink.until(lambda s: 1 in s.tokens)
    engine.submit([req(3, 10**9)])
    await engine.stop()
    await engine.stop()
    assert sink.finish == dict.fromkeys((1, 2, 3), FinishReason.CANCELLED)
    assert core.closed == 1
    assert "stopped-soon" not in {thread.name for thread in threading.enumerate()}
    engine.submit([req(4)])
    await sink.until(lambda s: 4 in s.finish)
    assert sink.finish[4] == FinishReason.ERROR
    with pytest.raises(EngineStoppedError):
        await engine.embed("m@1", [[1]])
    with pytest.raises(EngineStoppedError):
        await engine.start(sink)


async def test_stop_before_start_does_nothing():
    await ThreadedEngine(CountingCore()).stop()


async def test_a_load_error_is_raised_by_start_and_the_thread_ends():
    core = CountingCore()
    core.load_error = EngineLoadError("weights.bin: truncated")
    engine = ThreadedEngine(core, name="never-loaded")
    with pytest.raises(EngineLoadError, match=r"weights\.bin"):
        await engine.start(Sink())
    assert core.closed == 1
    assert "never-loaded" not in {thread.name for thread in threading.enumerate()}


async def test_a_broken_core_ends_its_sequences_and_reports_itself(caplog):
    core, sink, failures = CountingCore(), Sink(), []
    engine = ThreadedEngine(core, on_failure=failures.append)
    await engine.start(sink)
    core.gate.clear()
    engine.submit([req(1), req(2)])
    core.step_error = RuntimeError("device lost")
    core.gate.set()
    await sink.until(lambda s: len(s.finish) == 2)
    assert sink.finish == {1: FinishReason.ERROR, 2: FinishReason.ERROR}
    assert sink.outputs[-1].errors == {1: "the engine failed", 2: "the engine failed"}
    engine.submit([req(3)])
    await sink.until(lambda s: 3 in s.finish)
    await engine.stop()
    assert failures == [core.step_error]
    assert engine.failure is core.step_error
    assert core.closed == 1
    assert "device lost" in caplog.text


async def test_a_faulty_sink_loses_no_later_step(caplog):
    core, sink = CountingCore(), Sink()
    calls = []

    def faulty(output):
        calls.append(output.step)
        if output.step == 0:
            raise ValueError("no such stream")
        sink(output)

    engine = ThreadedEngine(core)
    await engine.start(faulty)
    engine.submit([req(1, 4)])
    await sink.until(lambda s: 1 in s.finish)
    await engine.stop()
    assert (calls, sink.tokens) == ([0, 1, 2, 3], {1: [1, 2, 3]})
    assert "step_sink_failed" in caplog.text


async def test_a_blocked_loop_bounds_what_is_kept_for_it():
    core, sink = CountingCore(), Sink()
    reached = threading.Event()
    engine = ThreadedEngine(core, max_undelivered_steps=8)
    original = core.step

    def step():
        output = original()
        if core.steps == 8:
            reached.set()
        return output

    core.step = step
    await engine.start(sink)
    engine.submit([req(1, 10**9)])
    # Waiting here without awaiting is the blocked loop; the core makes eight steps and then waits for the loop.
    assert reached.wait(30)
    assert core.steps == 8
    await sink.until(lambda s: len(s.outputs) > 20)
    await engine.stop()
    assert sink.tokens[1] == list(range(len(sink.tokens[1])))
