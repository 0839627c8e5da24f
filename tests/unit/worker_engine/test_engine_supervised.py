"""An engine that is made anew when it fails."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from libs.clock import ManualClock
from services.worker import metrics
from services.worker.engines.driven import CoreEndedError, EngineStoppedError
from services.worker.engines.port import EngineLoadError, FinishReason
from services.worker.engines.process import ProcessEngine
from services.worker.engines.supervised import SupervisedEngine
from services.worker.engines.threaded import ThreadedEngine
from services.worker.policy.restarts import Restarts
from tests.support import cores
from tests.support.cores import OrderedCore, request
from tests.support.steps import Steps

ENDLESS = 10**9


class Bench:
    """A supervised engine over threads or processes, and all that it told."""

    def __init__(self, tmp_path, *, limit: int = 3, silence: float = 60.0, process: bool = False) -> None:
        self.steps = Steps()
        self.refuse = tmp_path / "refuse"
        self.process = process
        self.made: list[ThreadedEngine | ProcessEngine] = []
        self.told: list[str] = []
        self.given_up: list[BaseException] = []
        self.lost: list[tuple[str, str]] = []
        self.during_down = lambda: None
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.up = asyncio.Event()
        self.engine = SupervisedEngine(
            self._make,
            restarts=Restarts(limit=limit, window=60.0, first_delay=0.0, max_delay=0.0),
            silence=silence,
            most_faults=3,
            clock=ManualClock(),
            on_down=self._down,
            on_up=self._up,
            on_given_up=self.given_up.append,
            on_lost=lambda model, error: self.lost.append((model, str(error))),
        )
        self.supervising: asyncio.Task[None] | None = None

    def _make(self, on_failure) -> ThreadedEngine | ProcessEngine:
        if self.process:
            self.made.append(ProcessEngine(OrderedCore, stop_grace=0.1, on_failure=on_failure))
            return self.made[-1]
        self.made.append(ThreadedEngine(OrderedCore(refuse=self.refuse), on_failure=on_failure))
        return self.made[-1]

    async def _down(self) -> None:
        self.told.append("down")
        self.during_down()
        await self.may_go_on.wait()

    def _up(self) -> None:
        self.told.append("up")
        self.up.set()

    async def start(self) -> None:
        await self.engine.start(self.steps)
        self.supervising = asyncio.create_task(self.engine.supervise())

    async def close(self) -> None:
        if self.supervising is not None:
            self.supervising.cancel()
            await asyncio.wait((self.supervising,))
        await self.engine.stop()


@pytest.fixture
async def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    await made.close()


def restarts() -> float:
    [family] = metrics.RESTARTS.collect()
    return next(sample.value for sample in family.samples if sample.name.endswith("_total"))


async def test_it_is_an_engine_like_the_one_within(bench):
    with pytest.raises(EngineStoppedError):
        _ = bench.engine.info
    await bench.start()
    assert bench.engine.up
    assert bench.engine.info == OrderedCore().info
    assert bench.engine.capacity().free_blocks == cores.BLOCKS
    bench.engine.submit([request(1), request(2, ENDLESS)])
    await bench.steps.finished(1)
    assert bench.steps.tokens[1] == [0, 1, 2]
    bench.engine.cancel([2])
    await bench.steps.finished(2)
    assert len((await bench.engine.embed(cores.MODEL, [[1, 2]]))[0]) == 2


async def test_an_engine_that_hangs_is_killed_and_replaced(tmp_path):
    bench = Bench(tmp_path, silence=0.2, process=True)
    await bench.start()
    try:
        bench.engine.submit([request(1, ENDLESS)])
        await bench.steps.until(lambda steps: 1 in steps.tokens)
        os.kill(bench.made[0].pid, signal.SIGSTOP)
        await bench.up.wait()
        assert bench.told == ["down", "up"]
        bench.engine.submit([request(3)])
        await bench.steps.finished(3)
    finally:
        await bench.close()


async def test_an_idle_engine_may_be_silent(tmp_path):
    bench = Bench(tmp_path, silence=1.0)  # of a machine that is busy, an engine may not step for long
    await bench.start()
    bench.engine.submit([request(1)])
    await bench.steps.finished(1)
    loop = asyncio.get_running_loop()
    quiet, over = loop.time(), asyncio.Event()
    loop.call_at(quiet + 1.5, over.set)
    await over.wait()
    assert bench.told == []
    await bench.close()


async def test_a_failed_engine_is_replaced_and_its_ends_are_kept_back(bench):
    await bench.start()
    bench.engine.submit([request(1, ENDLESS)])
    await bench.steps.until(lambda steps: 1 in steps.tokens)
    before = restarts()
    bench.engine.submit([request(2, order=cores.RAISE)])
    await bench.up.wait()
    assert bench.told == ["down", "up"]
    assert restarts() == before + 1
    assert bench.steps.finish == {}  # ending them is for whoever was told
    bench.engine.submit([request(3)])
    await bench.steps.finished(3)
    assert bench.steps.tokens[3] == [0, 1, 2]
    assert bench.engine.current is bench.made[1]
    assert len(bench.made) == 2


async def test_e4_an_engine_that_only_fails_is_replaced_and_the_last_ones_are_handed_back(bench):
    await bench.start()
    for handle in range(10):  # refusals are nobody's fault but their own
        bench.engine.submit([request(handle, order=cores.REFUSED)])
        await bench.steps.finished(handle)
    for handle in (20, 21):
        bench.engine.submit([request(handle, order=cores.FAULT)])
        await bench.steps.finished(handle)
    bench.engine.submit([request(22, 1)])  # a token: the engine works
    await bench.steps.finished(22)
    for handle in (30, 31):
        bench.engine.submit([request(handle, order=cores.FAULT)])
        await bench.steps.finished(handle)
    assert bench.told == []
    bench.engine.submit([request(32, order=cores.FAULT)])
    await bench.up.wait()
    assert bench.told == ["down", "up"]
    assert 32 not in bench.steps.finish
    bench.up.clear()
    bench.engine.submit([request(40, order=cores.FAULT)])  # the fresh one begins at none
    await bench.steps.finished(40)
    assert bench.told == ["down", "up"]


async def test_while_it_is_down_it_takes_nothing(bench):
    await bench.start()
    bench.may_go_on.clear()
    down = asyncio.Event()
    bench.during_down = down.set
    bench.engine.submit([request(1, order=cores.RAISE)])
    await down.wait()
    assert not bench.engine.up
    assert metrics.RESTARTING._value.get() == 1
    assert bench.engine.capacity().free_blocks == 0
    assert bench.engine.info.total_blocks == cores.BLOCKS
    bench.engine.submit([request(2)])  # handed back with the others, so nobody else answers it
    bench.engine.cancel([1])
    with pytest.raises(EngineStoppedError):
        await bench.engine.embed(cores.MODEL, [[1]])
    bench.may_go_on.set()
    await bench.up.wait()
    assert bench.steps.finish == {}
    assert metrics.RESTARTING._value.get() == 0
    bench.engine.submit([request(3)])
    await bench.steps.finished(3)
    assert bench.steps.finish == {3: FinishReason.LENGTH}


async def test_an_engine_that_does_not_load_is_tried_again(bench):
    await bench.start()
    bench.refuse.write_text("model.safetensors: truncated")
    bench.during_down = lambda: None
    made = bench._make

    def make(on_failure):
        if len(bench.made) == 2:  # the third one may load
            bench.refuse.unlink()
        return made(on_failure)

    bench.engine._make = make
    bench.engine.submit([request(1, order=cores.RAISE)])
    await bench.up.wait()
    assert len(bench.made) == 3
    assert bench.told == ["down", "up"]


async def test_too_many_failures_give_it_up_with_the_last_of_them(bench):
    await bench.start()
    bench.refuse.write_text("model.safetensors: truncated")
    bench.engine.submit([request(1, order=cores.RAISE)])
    await asyncio.wait_for(asyncio.shield(bench.supervising), 30)
    [error] = bench.given_up
    assert isinstance(error, EngineLoadError)
    assert str(error) == "model.safetensors: truncated"
    assert len(bench.made) == 4  # the first, and as many more as the limit allows
    bench.engine.submit([request(2)])
    await bench.steps.finished(2)
    assert bench.steps.finish == {2: FinishReason.ERROR}


async def test_a_first_start_that_fails_is_not_tried_again(bench):
    bench.refuse.write_text("config.json: not JSON")
    with pytest.raises(EngineLoadError, match=r"config\.json"):
        await bench.start()
    assert len(bench.made) == 1
    assert bench.told == []


async def test_stopping_is_no_failure(bench):
    await bench.start()
    bench.engine.submit([request(1, ENDLESS)])
    await bench.steps.until(lambda steps: 1 in steps.tokens)
    await bench.engine.stop()
    assert bench.steps.finish == {1: FinishReason.CANCELLED}
    assert bench.told == []


async def test_stop_before_start_does_nothing(bench):
    await bench.engine.stop()
    assert bench.made == []


async def test_a_fresh_engine_loads_what_the_one_before_had(bench):
    await bench.start()
    await bench.engine.load("n@1", "folder")
    await bench.engine.load("gone@1", "folder")
    await bench.engine.unload("gone@1")
    assert bench.engine.info.models == (cores.MODEL, "n@1")
    bench.engine.submit([request(1, order=cores.RAISE)])
    await bench.up.wait()
    assert bench.engine.info.models == (cores.MODEL, "n@1")
    bench.engine.submit([request(2, model="n@1")])
    await bench.steps.finished(2)
    await bench.engine.unload("n@1")
    assert bench.engine.info.models == (cores.MODEL,)


async def test_what_cannot_be_loaded_again_is_told_and_the_rest_is_served(bench, tmp_path):
    folder = tmp_path / "folder"
    await bench.start()
    await bench.engine.load("n@1", str(folder))
    (tmp_path / "folder.broken").touch()
    bench.engine.submit([request(1, order=cores.RAISE)])
    await bench.up.wait()
    assert bench.lost == [("n@1", f"n@1: {folder} is broken")]
    assert bench.engine.info.models == (cores.MODEL,)
    bench.up.clear()
    bench.engine.submit([request(2, order=cores.RAISE)])  # it is not tried again with the next engine
    await bench.up.wait()
    assert len(bench.lost) == 1


@pytest.mark.parametrize("folder", ["never", "die"])
async def test_an_engine_that_dies_ends_the_load_under_way(tmp_path, folder):
    bench = Bench(tmp_path, process=True)
    await bench.start()
    try:
        loading = asyncio.create_task(bench.engine.load("n@1", folder))
        if folder == "never":
            await asyncio.sleep(0)
            os.kill(bench.made[0].pid, signal.SIGKILL)
        with pytest.raises((EngineStoppedError, CoreEndedError)):
            await loading
        await bench.up.wait()
        assert bench.engine.info.models == (cores.MODEL,)
        await bench.engine.load("n@1", "folder")
        bench.engine.submit([request(3, model="n@1")])
        await bench.steps.finished(3)
    finally:
        await bench.close()


async def test_a_load_that_fails_in_the_engines_process_keeps_its_words(tmp_path):
    bench = Bench(tmp_path, process=True)
    await bench.start()
    try:
        with pytest.raises(EngineLoadError, match="n@1: broken"):
            await bench.engine.load("n@1", "broken")
        assert await bench.engine.load("n@1", "folder") == {"read": 1.0}
        await bench.engine.unload("ghost@1")
        assert bench.engine.info.models == (cores.MODEL, "n@1")
    finally:
        await bench.close()
