"""Versions in processes of their own, which are killed, grow, hang and lie."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from weir.registry.v1 import registry_pb2

from libs.batching import Batcher, CostModel, Item, Late, Limits
from libs.versions.manifest import ManifestFile
from services.predictor.executors import Barred, Crashed, Executors, Ran, Settings
from services.predictor.executors.dispatcher import Dispatcher
from services.predictor.executors.processes import Bounds
from services.predictor.files import Files
from services.predictor.port import LoadError, ModelError, Signature, Tensor
from tests.support.executing import CLOCK, THREAD, call, go_on, load, make, runs, waiting
from tests.support.predictor_models import DIE, GROW, RAISE, REFUSE, WAIT, prepare


@pytest.fixture
async def executors() -> AsyncIterator[Executors]:
    made = Executors(CLOCK, Settings(imports=(), prepare=prepare))
    yield made
    await made.close()


async def test_batches_errors_and_large_tensors_cross_and_the_process_ends_with_its_version(
    executors: Executors, tmp_path: Path
) -> None:
    folder = await load(executors, tmp_path / "m", lane="process", max_rows=64)
    [pid] = executors.pids("m@1")
    assert psutil.Process(pid).ppid() == os.getpid()
    calls = [call(executors, *range(n, n + 4), tenant=f"t{n}") for n in range(0, 40, 4)]
    answers = await asyncio.gather(*calls)
    assert [ran.outputs["y"][:, 0].tolist() for ran in answers] == [
        [2.0 * n for n in range(first, first + 4)] for first in range(0, 40, 4)
    ]
    assert len(runs(folder)) < 10
    assert sum(ran.executions for ran in answers) == len(runs(folder))
    large = await call(executors, 3, 4, width=1 << 20, outputs=frozenset({"z"}))
    assert list(large.outputs) == ["z"]
    assert large.outputs["z"].shape == (2, 1 << 20)
    assert np.unique(large.outputs["z"]).tolist() == [4, 5]
    with pytest.raises(ModelError, match=r"^it is negative$") as refused:
        await call(executors, REFUSE)
    assert refused.value.tensor == "x"
    with pytest.raises(Crashed, match=r"^the model raised RuntimeError$"):
        await call(executors, RAISE)
    assert answers[0].outputs["y"][1, 1] == 2, "an answer changed under its reader"
    await executors.unload("m@1")
    assert not psutil.pid_exists(pid)


async def test_a_process_killed_in_mid_batch_is_replaced_and_its_members_run_once_more_alone(
    executors: Executors, tmp_path: Path
) -> None:
    folder = await load(executors, tmp_path / "m", lane="process")
    calls = [call(executors, value, tenant=f"t{value}") for value in (1, WAIT, 3)]
    await waiting(folder)
    [pid] = executors.pids("m@1")
    os.kill(pid, signal.SIGKILL)
    await waiting(folder)  # again
    await go_on(folder)
    assert [ran.outputs["y"][0, 0] for ran in await asyncio.gather(*calls)] == [2, 2 * WAIT, 6]
    assert executors.pids("m@1") != [pid]
    first, *again = runs(folder)
    assert sorted(first) == sorted([1, WAIT, 3])
    assert sorted(again) == sorted([[1], [WAIT], [3]])


async def test_rows_that_kill_processes_harm_nobody_else_and_are_not_tried_for_ever(
    executors: Executors, tmp_path: Path
) -> None:
    folder = await load(executors, tmp_path / "m", lane="process")
    calls = [call(executors, 1, tenant="good"), call(executors, DIE, tenant="bad"), call(executors, 2, tenant="other")]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert str(answers[1]) == "the model's process died of SIGKILL"
    assert isinstance(answers[1], Crashed)
    assert [answers[0].outputs["y"][0, 0], answers[2].outputs["y"][0, 0]] == [2, 4]
    for _ in range(2):  # by now it keeps to itself, and has one chance
        before = len(runs(folder))
        calls = [call(executors, 1, tenant="good"), call(executors, DIE, tenant="bad")]
        good, bad = await asyncio.gather(*calls, return_exceptions=True)
        assert good.outputs["y"][0, 0] == 2
        assert isinstance(bad, Crashed)
        assert sorted(runs(folder)[before:]) == [[DIE], [1]]
    before = runs(folder)
    with pytest.raises(Barred, match="too often") as barred:
        await call(executors, 5, tenant="bad")
    assert 0 < barred.value.retry_after <= 60
    assert [executors.bars("m@1", tenant) for tenant in ("bad", "good")] == [True, False]
    assert runs(folder) == before
    assert (await call(executors, 5, tenant="good")).outputs["y"][0, 0] == 10


async def test_a_version_that_several_tenants_end_is_broken_and_bars_nobody() -> None:
    signature = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),), 8)
    dispatcher = Dispatcher(signature, Batcher(CostModel(0.001, 0.0), Limits()), [], CLOCK)

    def dies(tenant: str, times: int) -> None:
        for _ in range(times):
            dispatcher._offends(Item(tenant, "k", 1, 1.0, None), CLOCK.monotonic(), died=True)

    def run() -> Coroutine[Any, Any, Ran]:
        inputs = {"x": np.ones((1, 2), np.float32)}
        return dispatcher.run(inputs, None, 1, "a", 0, CLOCK.monotonic() + 60)

    dies("a", 3)
    dies("b", 1)
    assert dispatcher.bars("a")
    with pytest.raises(Barred):
        await run()
    dies("c", 1)
    assert not dispatcher.bars("a")
    with pytest.raises(Crashed, match="several tenants"):
        await run()


async def test_while_there_is_no_process_who_cannot_wait_is_told_at_once(executors: Executors, tmp_path: Path) -> None:
    folder = await load(executors, tmp_path / "m", lane="process")
    dies = call(executors, WAIT)
    await waiting(folder)
    cost = (folder / "cost").read_text()
    (folder / "cost").unlink()
    os.mkfifo(folder / "cost")  # the next process loads until somebody writes here
    os.kill(executors.pids("m@1")[0], signal.SIGKILL)
    while True:  # until the predictor knows, too
        with pytest.raises(Late) as late:
            await call(executors, 2, within=0.05)
        if late.value.retry_after is not None:  # as only who is refused at once hears
            break
    patient = call(executors, 1)
    await asyncio.to_thread((folder / "cost").write_text, cost)
    await waiting(folder)
    await go_on(folder)
    assert (await dies).outputs["y"][0, 0] == 2 * WAIT
    assert (await patient).outputs["y"][0, 0] == 2
    assert [2] not in runs(folder)


async def test_a_process_that_grows_is_replaced_while_it_goes_on(tmp_path: Path) -> None:
    executors = Executors(CLOCK, Settings(imports=(), prepare=prepare, bounds=Bounds(growth=64 << 20)))
    folder = await load(executors, tmp_path / "m", lane="process")
    [pid] = executors.pids("m@1")
    answers = [await call(executors, GROW)]
    while executors.pids("m@1") == [pid]:
        answers.append(await call(executors, 1))
    await asyncio.to_thread(psutil.Process(pid).wait) if psutil.pid_exists(pid) else None
    assert (await call(executors, 3)).outputs["y"][0, 0] == 6
    assert len(runs(folder)) == len(answers) + 1, "something ran twice"
    await executors.close()


async def test_a_batch_that_hangs_is_ended_with_its_process(tmp_path: Path) -> None:
    executors = Executors(CLOCK, Settings(imports=(), prepare=prepare, bounds=Bounds(seconds=0.2)))
    await load(executors, tmp_path / "m", lane="process")
    with pytest.raises(Crashed, match=r"longer|more than 0.2 s"):
        await call(executors, WAIT)
    assert (await call(executors, 3)).outputs["y"][0, 0] == 6
    await executors.close()


async def test_a_version_may_declare_many_columns_and_categories_but_not_any_number_of_files(
    executors: Executors, tmp_path: Path
) -> None:
    make(tmp_path / "m", THREAD)
    spec = registry_pb2.PredictionSpec(max_rows=8, lane="process")
    told = spec.inputs.add(name="x", datatype="FP32", shape=[-1, 2])
    told.columns.add(name="code", categorical=True, categories=[f"{n:06}" for n in range(30_000)])
    told.rules.add(columns=[0], categories=told.columns[0].categories, unseen="reject")
    async with asyncio.timeout(60):
        await executors.load("m@1", Files(tmp_path / "m"), spec)
        assert len(executors.pids("m@1")) == 1
        listed = {f"{n:040}": ManifestFile(f"{n:040}", n, "0" * 64) for n in range(2_000)}
        with pytest.raises(LoadError, match="more than 131072 bytes"):
            await executors.load("f@1", Files(tmp_path / "m", listed), spec)


@pytest.mark.parametrize("lane", ["", "inline", "thread", "process"])
async def test_a_model_that_ends_its_process_while_it_loads_is_refused_and_others_go_on(
    executors: Executors, tmp_path: Path, lane: str
) -> None:
    await load(executors, tmp_path / "m", lane="thread")
    make(tmp_path / "deadly", THREAD)
    (tmp_path / "deadly" / "deadly").touch()
    with pytest.raises(LoadError, match="died of SIGKILL"):
        await executors.load("d@1", Files(tmp_path / "deadly"), registry_pb2.PredictionSpec(max_rows=8, lane=lane))
    with pytest.raises(KeyError):
        executors.signature("d@1")
    assert (await call(executors, 3)).outputs["y"][0, 0] == 6


async def test_what_is_loading_stops_nobody_and_can_be_given_up(executors: Executors, tmp_path: Path) -> None:
    await load(executors, tmp_path / "m", lane="thread")
    make(tmp_path / "slow", THREAD)
    (tmp_path / "slow" / "cost").unlink()
    os.mkfifo(tmp_path / "slow" / "cost")
    loading = asyncio.create_task(
        executors.load("s@1", Files(tmp_path / "slow"), registry_pb2.PredictionSpec(max_rows=8, lane="thread"))
    )
    before = set(psutil.Process().children())
    while not (started := set(psutil.Process().children()) - before):
        assert (await call(executors, 3)).outputs["y"][0, 0] == 6
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert not any(process.is_running() for process in started)
    await load(executors, tmp_path / "next", version="n@1")
    assert (await call(executors, 4, version="n@1")).outputs["y"][0, 0] == 8


async def test_lanes_are_chosen_by_cost_and_by_what_libraries_can_do(executors: Executors, tmp_path: Path) -> None:
    await load(executors, tmp_path / "native", seconds=THREAD, version="native@1")
    assert executors.pids("native@1") == []
    make(tmp_path / "foreign", THREAD)
    (tmp_path / "foreign" / "foreign").touch()
    await executors.load("foreign@1", Files(tmp_path / "foreign"), registry_pb2.PredictionSpec(max_rows=8))
    assert len(executors.pids("foreign@1")) == 1
    make(tmp_path / "odd", THREAD)
    with pytest.raises(LoadError, match="'fast'; there are inline, thread, process"):
        await executors.load("odd@1", Files(tmp_path / "odd"), registry_pb2.PredictionSpec(max_rows=8, lane="fast"))
