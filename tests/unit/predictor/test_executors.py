"""Versions in the server's own process: batches, deadlines, failures, and callers who leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from weir.registry.v1 import registry_pb2

from libs.batching import Late
from services.predictor.executors import Crashed, Executors, Ran, Settings
from services.predictor.executors.lanes import OwnCost
from services.predictor.executors.threads import ThreadExecutor
from services.predictor.executors.work import Done, Work
from services.predictor.files import Files
from services.predictor.port import LoadError, ModelError, Signature, Tensor, Tensors
from tests.support.executing import CLOCK, INLINE, THREAD, call, go_on, load, make, runs, waiting
from tests.support.predictor_models import RAISE, REFUSE, WAIT, prepare


@pytest.fixture
async def executors() -> AsyncIterator[Executors]:
    made = Executors(CLOCK, Settings(imports=(), prepare=prepare))
    yield made
    await made.close()


async def test_what_arrives_in_one_turn_runs_at_once_and_everyone_gets_their_own_rows(
    executors: Executors, tmp_path: Path
) -> None:
    folder = await load(executors, tmp_path / "m", seconds=INLINE)
    calls = [call(executors, n, n + 100, tenant=f"t{n}") for n in range(1, 5)]
    answers = await asyncio.gather(*calls)
    assert len(runs(folder)) == 1
    assert sum(ran.executions for ran in answers) == 1
    for n, ran in enumerate(answers, 1):
        assert ran.outputs["y"].tolist() == [[2 * n, 2 * n], [2 * n + 200, 2 * n + 200]]
        assert ran.outputs["z"][0, 0] == n + 1
        assert ran.rows == 8
        assert min(ran.queue, ran.input, ran.compute, ran.output) >= 0


@pytest.mark.parametrize("seconds", [INLINE, THREAD])
async def test_callers_of_different_outputs_and_shapes_never_share_a_batch(
    executors: Executors, tmp_path: Path, seconds: float
) -> None:
    folder = await load(executors, tmp_path / "m", seconds=seconds)
    names = [None, frozenset({"y"}), frozenset({"z"}), frozenset({"y", "z"})]
    calls = [call(executors, n, outputs=names[n % 4], width=1 + n % 3, tenant=f"t{n % 5}") for n in range(1, 33)]
    for n, ran in enumerate(await asyncio.gather(*calls), 1):
        assert set(ran.outputs) == (names[n % 4] or {"y", "z"})
        for name, array in ran.outputs.items():
            assert array.tolist() == [[n * 2 if name == "y" else n + 1] * (1 + n % 3)]
    assert len(runs(folder)) < 32


@pytest.mark.parametrize("seconds", [INLINE, THREAD])
async def test_a_poison_row_fails_alone_and_its_tenant_keeps_to_itself(
    executors: Executors, tmp_path: Path, seconds: float
) -> None:
    folder = await load(executors, tmp_path / "m", seconds=seconds)
    calls = [call(executors, REFUSE if n == 5 else n, tenant=f"t{n}") for n in range(8)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers[5], ModelError)
    assert [ran.outputs["y"][0, 0] for n, ran in enumerate(answers) if n != 5] == [0, 2, 4, 6, 8, 12, 14]
    (folder / "runs").unlink()
    calls = [call(executors, 50 + n, tenant=f"t{n}") for n in range(8)]
    assert [ran.outputs["y"][0, 0] for ran in await asyncio.gather(*calls)] == [100 + 2 * n for n in range(8)]
    assert [55] in runs(folder)


async def test_what_a_library_raises_is_told_by_its_kind_and_without_its_words(
    executors: Executors, tmp_path: Path
) -> None:
    await load(executors, tmp_path / "m", seconds=THREAD)
    with pytest.raises(Crashed, match=r"^the model raised RuntimeError$") as raised:
        await call(executors, RAISE)
    assert raised.value.__cause__ is raised.value.__context__ is None
    assert (await call(executors, 3)).outputs["y"][0, 0] == 6


async def test_a_deadline_that_ends_behind_a_long_execution_is_told_then_and_never_executed(
    executors: Executors, tmp_path: Path
) -> None:
    folder = await load(executors, tmp_path / "m", seconds=THREAD)
    long = call(executors, WAIT)
    await waiting(folder)
    with pytest.raises(Late):
        await call(executors, 7, within=0.1)
    await go_on(folder)
    assert (await long).outputs["y"][0, 0] == 2 * WAIT
    await call(executors, 8)
    assert [7] not in runs(folder)
    assert [8] in runs(folder)


async def test_who_cancels_leaves_no_place_and_is_not_executed(executors: Executors, tmp_path: Path) -> None:
    folder = await load(executors, tmp_path / "m", seconds=THREAD)
    long = call(executors, WAIT)
    await waiting(folder)
    storm = [call(executors, 7, tenant=f"t{n % 7}") for n in range(4096)]
    await asyncio.sleep(0)
    with pytest.raises(Late) as full:
        await call(executors, 8, tenant="t0")
    assert full.value.full
    for one in storm:
        one.cancel()
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*storm, return_exceptions=True))
    after = call(executors, 9)
    long.cancel()  # what runs goes on running; its caller has left
    await go_on(folder)
    assert (await after).outputs["y"][0, 0] == 18
    assert runs(folder) == [[WAIT], [9]]


async def test_a_model_that_runs_long_is_in_nobody_elses_way(executors: Executors, tmp_path: Path) -> None:
    long = await load(executors, tmp_path / "long", seconds=THREAD, version="long@1")
    await load(executors, tmp_path / "short", seconds=INLINE, version="short@1")
    await load(executors, tmp_path / "other", seconds=THREAD, version="other@1")
    blocked = call(executors, WAIT, version="long@1")
    await waiting(long)
    assert (await call(executors, 1, version="short@1")).outputs["y"][0, 0] == 2
    assert (await call(executors, 2, version="other@1")).outputs["y"][0, 0] == 4
    assert not blocked.done()
    await go_on(long)
    await blocked


async def test_unloading_takes_nothing_new_and_waits_for_what_runs_and_waits(
    executors: Executors, tmp_path: Path
) -> None:
    folder = await load(executors, tmp_path / "m", seconds=THREAD)
    running, queued = call(executors, WAIT), call(executors, 3)
    await waiting(folder)
    unloading = asyncio.create_task(executors.unload("m@1"))
    await asyncio.sleep(0)
    with pytest.raises(KeyError):
        await call(executors, 4)
    assert not unloading.done()
    assert not (folder / "closed").exists()
    await go_on(folder)
    assert (await running).outputs["y"][0, 0] == 2 * WAIT
    assert (await queued).outputs["y"][0, 0] == 6
    await unloading
    assert (folder / "closed").exists()
    await load(executors, tmp_path / "again", seconds=INLINE)
    assert (await call(executors, 5)).outputs["y"][0, 0] == 10


async def test_a_model_without_rows_runs_one_request_at_a_time(executors: Executors, tmp_path: Path) -> None:
    folder = await load(executors, tmp_path / "m", seconds=INLINE, max_rows=0)

    async def whole(values: list[float]) -> Ran:
        inputs = {"x": np.array(values, np.float32)}
        deadline = CLOCK.monotonic() + 60
        return await executors.run("m@1", inputs, outputs=None, rows=1, tenant="t", rank=0, deadline=deadline)

    one, other = await asyncio.gather(whole([1, 2, 3]), whole([4, 5]))
    assert one.outputs["y"].tolist() == [2, 4, 6]
    assert other.outputs["y"].tolist() == [8, 10]
    assert runs(folder) == [[1, 2, 3], [4, 5]]


async def test_a_version_that_fails_its_test_is_not_loaded(executors: Executors, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "broken").touch()
    with pytest.raises(LoadError, match="gave"):
        await executors.load("m@1", Files(tmp_path / "m"), registry_pb2.PredictionSpec(max_rows=1))
    with pytest.raises(KeyError):
        executors.signature("m@1")


@pytest.mark.parametrize("lane", ["thread", "process"])
async def test_what_a_version_takes_is_measured_where_it_runs(tmp_path: Path, lane: str) -> None:
    absent: list[str] = []
    executors = Executors(CLOCK, Settings(imports=(), prepare=prepare), absent=absent.append)
    make(tmp_path / "m", THREAD)
    (tmp_path / "m" / "heavy").touch()
    with pytest.raises(KeyError):
        executors.ask("m@1")
    assert (absent, list(executors.asked), executors.memory("m@1")) == (["m@1"], ["m@1"], 0)
    await executors.load("m@1", Files(tmp_path / "m"), registry_pb2.PredictionSpec(max_rows=8, lane=lane))
    assert executors.memory("m@1") >= 64 << 20
    assert executors.ask("m@1") == executors.signature("m@1")
    assert absent == ["m@1"]
    await executors.unload("m@1")
    assert executors.memory("m@1") == 0
    executors.forget(["other@1"])
    assert executors.asked == {}
    await executors.close()


@pytest.fixture
async def narrow() -> AsyncIterator[Executors]:
    made = Executors(CLOCK, Settings(imports=(), prepare=prepare, queue_rows=4))
    yield made
    await made.close()


async def test_who_loses_its_place_in_a_full_queue_is_told_at_once(narrow: Executors, tmp_path: Path) -> None:
    folder = await load(narrow, tmp_path / "m")
    running = call(narrow, WAIT)
    await waiting(folder)
    kept, lost = call(narrow, 1, 2, tenant="flood"), call(narrow, 3, 4, tenant="flood")
    other = call(narrow, 5, tenant="other")
    try:
        with pytest.raises(Late) as late:
            await lost
    finally:
        await go_on(folder)
    assert (late.value.full, late.value.waited) == (True, True)
    assert late.value.retry_after
    await asyncio.gather(running, kept, other)
    assert sorted(value for run in runs(folder) for value in run) == [WAIT, 1, 2, 5]


class Quick:
    """A model that takes no time."""

    signature = Signature((Tensor("x", "FP32", (-1,)),), (Tensor("y", "FP32", (-1,)),), 8)
    native = True

    def __init__(self) -> None:
        self.threads: list[int] = []

    def run(self, inputs: Tensors, outputs: frozenset[str] | None = None) -> dict[str, np.ndarray]:
        self.threads.append(threading.get_ident())
        return {"y": inputs["x"]}

    def close(self) -> None:
        pass


async def test_a_batch_leaves_the_event_loop_for_what_it_takes_and_not_for_how_long_it_waits() -> None:
    model, taken = Quick(), 0.0001
    used = 0.0

    def cpu() -> float:
        nonlocal used
        used += taken
        return used

    own = OwnCost([(1, 0.0001)])
    executor = ThreadExecutor(model, CLOCK, own=own, cpu=cpu)
    work = Work([{"x": np.ones(1, np.float32)}], [1], None)

    async def run(expected: float) -> bool:
        """Whether it ran on the event loop."""
        ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        executor.start(work, expected, ended.set_result)
        assert isinstance(await ended, Done)
        return model.threads[-1] == threading.get_ident()

    assert [await run(10.0) for _ in range(3)] == [True] * 3, "by the clock it took seconds"
    taken = 0.01
    async with asyncio.timeout(60):
        while await run(0.0001):
            pass
        taken = 0.0001
        while not await run(0.0001):
            pass
    await executor.close()
