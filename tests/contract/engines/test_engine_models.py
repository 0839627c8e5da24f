"""What every engine must do when models come and go."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import engine_cases
import pytest
from engine_cases import CLOCK, CONTEXT, MODEL, Driver, request

from services.worker.engines.port import EngineLoadError, FinishReason

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER = "tiny@2"


def may_load(driver: Driver) -> bool:
    return driver.engine.info.engine in ("torch", "simulated")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A checkpoint of another version."""
    where = tmp_path / "other"
    where.mkdir()
    engine_cases.save_tiny_checkpoint(where)
    engine_cases.save_manifest(where, "tiny", "2")
    return where


@pytest.fixture
def loading(own_driver) -> Driver:
    """A driver of an engine that can load."""
    if not may_load(own_driver):
        pytest.skip("serves what it was started with")
    return own_driver


async def test_an_engine_of_one_model_refuses_another_and_says_why(own_driver, folder):
    if may_load(own_driver):
        pytest.skip("loads models while it runs")
    with pytest.raises(EngineLoadError, match=r"tiny@2: .* serves what it was started with"):
        await own_driver.engine.load(OTHER, str(folder))
    with pytest.raises(EngineLoadError, match=r"tiny@1: .* serves what it was started with"):
        await own_driver.engine.unload(MODEL)
    await own_driver.engine.unload(OTHER)
    await own_driver.run(request(1))
    assert own_driver.finish[1] == FinishReason.LENGTH


async def test_a_loaded_model_serves_beside_the_first(loading, folder):
    seconds = await loading.engine.load(OTHER, str(folder))
    assert seconds
    assert all(each >= 0 for each in seconds.values())
    assert loading.engine.info.models == (MODEL, OTHER)
    assert loading.engine.info.max_context == CONTEXT
    await loading.run(request(1), request(2, model=OTHER))
    assert (len(loading.tokens[1]), len(loading.tokens[2])) == (6, 6)


async def test_an_unloaded_model_is_gone_and_takes_no_memory(loading, folder):
    engine = loading.engine
    await engine.load(OTHER, str(folder))
    await loading.run(request(1, model=OTHER))
    await engine.unload(OTHER)
    assert engine.info.models == (MODEL,)
    await loading.run(request(2, model=OTHER), request(3))
    assert loading.finish[2] == FinishReason.ERROR
    assert loading.finish[3] == FinishReason.LENGTH
    load = engine.capacity()
    assert (load.free_blocks, load.running, load.waiting) == (engine.info.total_blocks, 0, 0)


async def test_what_runs_on_an_unloaded_model_runs_to_its_end(loading, folder):
    engine = loading.engine
    await engine.load(OTHER, str(folder))
    await loading.run(request(1, model=OTHER, max_tokens=60))
    # Five sequences: one waits.
    engine.submit([request(handle, model=OTHER, max_tokens=60) for handle in range(2, 7)])
    leaving = asyncio.ensure_future(engine.unload(OTHER))
    await asyncio.sleep(0)
    assert OTHER not in engine.info.models
    engine.submit([request(7, model=OTHER)])
    await loading.finished(*range(2, 8))
    await leaving
    assert {tuple(loading.tokens[handle]) for handle in range(1, 7)} == {tuple(loading.tokens[1])}
    assert len(loading.tokens[1]) == 60
    assert loading.finish[7] == FinishReason.ERROR


async def test_a_stream_goes_on_exactly_while_another_model_comes_and_goes(loading, folder):
    engine = loading.engine
    await loading.run(request(1, max_tokens=120))
    engine.submit([request(2, max_tokens=120)])
    await engine.load(OTHER, str(folder))
    engine.submit([request(3, max_tokens=120)])
    await engine.unload(OTHER)
    await loading.finished(2, 3)
    assert loading.tokens[2] == loading.tokens[3] == loading.tokens[1]


async def test_a_model_that_left_may_come_again(loading, folder):
    engine = loading.engine
    await engine.load(OTHER, str(folder))
    await loading.run(request(1, model=OTHER))
    await engine.unload(OTHER)
    await engine.load(OTHER, str(folder))
    await loading.run(request(2, model=OTHER))
    assert loading.tokens[2] == loading.tokens[1]


async def test_the_model_of_the_start_may_leave_and_come_again(loading, tmp_path, folder):
    engine = loading.engine
    await loading.run(request(1))
    await engine.unload(MODEL)
    assert engine.info.models == ()
    await loading.run(request(2))
    assert loading.finish[2] == FinishReason.ERROR
    await engine.load(OTHER, str(folder))
    await loading.run(request(3, model=OTHER))
    assert loading.tokens[3] == loading.tokens[1]


async def test_a_model_is_loaded_once(loading, folder):
    with pytest.raises(EngineLoadError, match="tiny@1 is loaded already"):
        await loading.engine.load(MODEL, str(folder))
    await loading.engine.load(OTHER, str(folder))
    with pytest.raises(EngineLoadError, match="tiny@2 is loaded already"):
        await loading.engine.load(OTHER, str(folder))


@pytest.mark.parametrize("damage", ["no folder", "no configuration", "nonsense"])
async def test_a_model_that_cannot_be_loaded_is_refused_by_file_and_the_others_run_on(loading, folder, damage):
    match damage:
        case "no folder":
            folder, names = folder / "nowhere", "nowhere"
        case "no configuration":
            (folder / "config.json").unlink()
            names = "config.json"
        case _:
            (folder / "config.json").write_text(json.dumps([1, 2]))
            names = "config.json"
    loading.engine.submit([request(1, max_tokens=100)])
    with pytest.raises(EngineLoadError, match=names):
        await loading.engine.load(OTHER, str(folder))
    assert loading.engine.info.models == (MODEL,)
    await loading.finished(1)
    assert len(loading.tokens[1]) == 100


async def test_a_load_that_is_given_up_leaves_nothing(loading, folder):
    engine = loading.engine
    coming = asyncio.ensure_future(engine.load(OTHER, str(folder)))
    await asyncio.sleep(0)
    coming.cancel()
    await asyncio.wait((coming,))
    await engine.unload(OTHER)
    assert engine.info.models == (MODEL,)
    await engine.load(OTHER, str(folder))
    await loading.run(request(1, model=OTHER))
    assert loading.finish[1] == FinishReason.LENGTH


async def test_unloading_what_is_not_there_is_fine(loading):
    await loading.engine.unload("ghost@9")
    assert loading.engine.info.models == (MODEL,)


async def test_a_stop_ends_a_load_under_way(loading, folder):
    coming = asyncio.ensure_future(loading.engine.load(OTHER, str(folder)))
    await asyncio.sleep(0)
    await loading.engine.stop()
    await asyncio.wait((coming,))
    assert CLOCK.monotonic() > 0
