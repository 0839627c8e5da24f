"""A core in a process of its own: what it says arrives whole, and its death is told in words."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import uvloop

from services.worker.engines.driven import CoreEndedError, EngineStoppedError
from services.worker.engines.port import EngineLoadError, FinishReason, SamplingParams
from services.worker.engines.process import ProcessEngine
from services.worker.engines.wire import CoreError
from tests.support import cores
from tests.support.cores import OrderedCore, request
from tests.support.steps import Steps

ENDLESS = 10**9


@pytest.fixture
async def steps():
    return Steps()


@pytest.fixture
async def engine(steps):
    """Started; stopped at the end."""
    running = ProcessEngine(OrderedCore)
    await running.start(steps)
    yield running
    await running.stop()


def process_of(engine: ProcessEngine) -> psutil.Process:
    assert engine.pid is not None
    return psutil.Process(engine.pid)


async def until(condition) -> None:
    """For states of other processes, which cannot be awaited (the test's timeout bounds it)."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def test_steps_arrive_in_order_from_another_process(engine, steps):
    assert engine.info == OrderedCore().info
    engine.submit([request(1), request(2, params=SamplingParams(max_tokens=5, logprobs=1))])
    await steps.finished(1, 2)
    assert steps.tokens == {1: [0, 1, 2], 2: [0, 1, 2, 3, 4]}
    assert steps.finish == {1: FinishReason.LENGTH, 2: FinishReason.LENGTH}
    assert [output.step for output in steps.outputs] == list(range(5))
    assert steps.outputs[0].prompt_tokens_cached == {1: 0, 2: 0}
    [entry] = steps.outputs[0].logprobs[2]
    assert (entry.logprob, entry.top) == (-0.5, [(7, -1.5)])
    [[length, pid]] = await engine.embed(cores.MODEL, [[1, 2, 3]])
    assert (length, pid) == (3.0, engine.pid)
    assert engine.pid != os.getpid()


async def test_a_cancelled_sequence_ends_and_others_go_on(engine, steps):
    engine.submit([request(1, ENDLESS), request(2, ENDLESS)])
    await steps.until(lambda s: 2 in s.tokens)
    engine.cancel([1, 77])
    await steps.finished(1)
    assert steps.finish == {1: FinishReason.CANCELLED}
    seen = len(steps.tokens[2])
    await steps.until(lambda s: len(s.tokens[2]) > seen + 10)


async def test_errors_of_embeddings_keep_their_kind(engine):
    with pytest.raises(EngineLoadError, match="x@1 is not loaded here"):
        await engine.embed("x@1", [[1]])
    with pytest.raises(ValueError, match="the prompt is empty"):
        await engine.embed(cores.MODEL, [[]])
    with pytest.raises(CoreError, match="KeyError: 'no such row'"):
        await engine.embed(cores.MODEL, [[cores.RAISE]])


async def test_capacity_counts_what_the_process_has_not_taken_yet(engine, steps):
    assert engine.capacity().free_blocks == cores.BLOCKS
    process = process_of(engine)
    process.suspend()
    engine.submit([request(1, 2)])
    engine.submit([request(2, 2), request(3, 2)])
    capacity = engine.capacity()
    assert (capacity.free_blocks, capacity.waiting, capacity.queued_prefill_tokens) == (cores.BLOCKS, 3, 6)
    process.resume()
    await steps.finished(1, 2, 3)
    capacity = engine.capacity()
    assert (capacity.free_blocks, capacity.waiting, capacity.queued_prefill_tokens) == (cores.BLOCKS, 0, 0)


@pytest.mark.parametrize(
    ("order", "kind", "said"),
    [
        (cores.RAISE, CoreError, "RuntimeError: device lost"),
        (cores.KILL, CoreEndedError, "died of SIGKILL"),
        (cores.EXIT, CoreEndedError, "ended with status 3"),
        (cores.GARBAGE, CoreEndedError, "sent garbage"),
    ],
)
async def test_a_broken_core_is_reported_and_every_sequence_ends(steps, order, kind, said):
    failures: list[BaseException] = []
    engine = ProcessEngine(OrderedCore, on_failure=failures.append)
    await engine.start(steps)
    process = process_of(engine)
    engine.submit([request(1, ENDLESS)])
    await steps.until(lambda s: 1 in s.tokens)
    embedding = asyncio.ensure_future(engine.embed(cores.MODEL, [[1]]))
    engine.submit([request(2, ENDLESS, order=order), request(3)])
    await steps.finished(1, 2, 3)
    assert set(steps.finish.values()) == {FinishReason.ERROR}
    assert set(steps.errors.values()) == {"the engine failed"}
    [failure] = failures
    assert isinstance(failure, kind)
    assert said in str(failure)
    assert engine.failure is failure
    assert engine.capacity().free_blocks == 0
    engine.submit([request(4)])
    await steps.finished(4)
    assert steps.finish[4] == FinishReason.ERROR
    with pytest.raises(EngineStoppedError):
        await engine.embed(cores.MODEL, [[1]])
    await asyncio.wait((embedding,))
    assert embedding.exception() is None or isinstance(embedding.exception(), EngineStoppedError)
    await engine.stop()
    assert not process.is_running()
    assert failures == [failure]


async def test_a_load_error_crosses_the_border_whole(tmp_path):
    refuse = tmp_path / "model.safetensors"
    refuse.write_text(f"{refuse}: truncated")
    failures: list[BaseException] = []
    engine = ProcessEngine(functools.partial(OrderedCore, refuse=refuse), on_failure=failures.append)
    with pytest.raises(EngineLoadError) as caught:
        await engine.start(Steps())
    assert str(caught.value) == f"{refuse}: truncated"
    assert failures == []  # `start` told it
    assert engine.pid is not None
    assert not psutil.pid_exists(engine.pid)


async def test_a_library_that_is_missing_there_is_named():
    with pytest.raises(CoreError, match="No module named 'accelerator'"):
        await ProcessEngine(cores.no_library).start(Steps())


async def test_a_factory_that_cannot_travel_starts_no_process():
    engine = ProcessEngine(lambda: OrderedCore())
    with pytest.raises((pickle.PicklingError, AttributeError)):
        await engine.start(Steps())
    assert engine.pid is None


async def test_signals_that_end_a_worker_leave_its_core_running(engine, steps):
    process = process_of(engine)
    engine.submit([request(1, ENDLESS)])
    await steps.until(lambda s: 1 in s.tokens)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert await engine.embed(cores.MODEL, [[1]])  # after the signals were delivered
    assert steps.finish == {}
    assert os.getsid(process.pid) == process.pid  # a terminal's Ctrl-C does not reach it at all


async def test_logs_of_the_core_are_written_by_the_worker(engine, steps, caplog):
    engine.submit([request(1, order=cores.LOG)])
    await steps.finished(1)
    [record] = [record for record in caplog.records if record.name == "tests.core"]
    assert (record.levelname, record.getMessage()) == ("WARNING", "warm")
    assert record.fields["degrees"] == 71


async def test_a_process_whose_worker_does_not_read_waits(steps):
    engine = ProcessEngine(OrderedCore, max_undelivered_steps=8)
    await engine.start(steps)
    process = process_of(engine)
    engine.submit([request(1, ENDLESS)])
    await steps.until(lambda s: 1 in s.tokens)
    # Asking without awaiting is the blocked loop. A core with work sleeps for this reason alone.
    while process.status() != psutil.STATUS_SLEEPING:
        pass
    seen = len(steps.tokens[1])
    await steps.until(lambda s: len(s.tokens[1]) > seen + 1000)
    await engine.stop()
    assert steps.tokens[1] == list(range(len(steps.tokens[1])))


async def test_stop_ends_everything_once_and_is_idempotent(steps):
    engine = ProcessEngine(OrderedCore)
    await engine.start(steps)
    process = process_of(engine)
    engine.submit([request(1, ENDLESS), request(2, ENDLESS)])
    await steps.until(lambda s: 1 in s.tokens)
    engine.submit([request(3)])
    await engine.stop()
    await engine.stop()
    assert steps.finish.keys() == {1, 2, 3}
    assert {steps.finish[1], steps.finish[2]} == {FinishReason.CANCELLED}
    assert engine.failure is None
    assert not process.is_running()
    with pytest.raises(EngineStoppedError):
        await engine.start(steps)


async def test_a_core_that_does_not_end_in_time_is_killed(steps):
    engine = ProcessEngine(OrderedCore, stop_grace=0.01)
    await engine.start(steps)
    engine.submit([request(1, ENDLESS)])
    process = process_of(engine)
    process.suspend()
    await engine.stop()
    assert not process.is_running()
    assert steps.finish == {1: FinishReason.CANCELLED}


async def test_a_start_that_is_cancelled_leaves_no_process(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # who reads it waits: the core never finishes loading
    engine = ProcessEngine(functools.partial(OrderedCore, refuse=pipe))
    starting = asyncio.ensure_future(engine.start(Steps()))
    await until(lambda: engine.pid is not None)
    process = process_of(engine)
    starting.cancel()
    await asyncio.wait((starting,))
    assert starting.cancelled()
    await engine.stop()
    assert not process.is_running()


def test_it_runs_on_the_event_loop_of_the_services_too():
    async def main() -> Steps:
        steps = Steps()
        engine = ProcessEngine(OrderedCore)
        await engine.start(steps)
        engine.submit([request(1)])
        await steps.finished(1)
        await engine.stop()
        return steps

    assert uvloop.run(main()).tokens == {1: [0, 1, 2]}


async def test_stop_before_start_does_nothing():
    engine = ProcessEngine(OrderedCore)
    await engine.stop()
    assert engine.pid is None


WORKER = """
import asyncio
from services.worker.engines.process import ProcessEngine
from tests.support.cores import OrderedCore, request

async def main():
    engine = ProcessEngine(OrderedCore)
    await engine.start(lambda output: None)
    engine.submit([request(1, 10**9)])
    print(engine.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_it_dies_with_its_worker():
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert worker.stdout is not None
    process = psutil.Process(int(await worker.stdout.readline()))
    worker.kill()
    await worker.communicate()
    await until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_the_worker_itself_needs_no_torch():
    program = (
        "import sys, services.worker.app; from services.worker.engines.torch_engine import hosting; "
        "hosting.build; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
