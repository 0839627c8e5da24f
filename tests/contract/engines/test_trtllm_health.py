"""A TensorRT-LLM that dies is noticed: it says so itself, or its requests do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import trtllm_double
from engine_cases import CLOCK, MODEL, request

from services.worker.engines.port import FinishReason, StepOutput
from services.worker.engines.tensorrt_llm import TensorrtSettings, build


class Rig:
    """A started engine whose library may be broken, its failures and its frames."""

    def __init__(self, folder: Any, **changes: Any) -> None:
        self.failed = asyncio.get_running_loop().create_future()
        self.frames: asyncio.Queue[StepOutput] = asyncio.Queue()
        settings = TensorrtSettings(model=MODEL, folder=str(folder), require_manifest=False, **changes)
        module = trtllm_double.module()
        self.engine = build(settings, clock=CLOCK, on_failure=self.failed.set_result, load_module=lambda: module)

    @property
    def llm(self) -> Any:
        return self.engine._library._llm


@pytest.fixture
async def rigs(tmp_path):
    made = []

    async def make(**changes: Any) -> Rig:
        made.append(Rig(tmp_path, **changes))
        await made[-1].engine.start(made[-1].frames.put_nowait)
        return made[-1]

    yield make
    for each in made:
        await each.engine.stop()


@pytest.mark.parametrize("how", ["says so", "raises"])
async def test_e4_a_library_that_is_not_well_has_failed(rigs, how):
    rig = await rigs(health_interval=0.001)
    rig.engine.submit([request(1, max_tokens=10_000, ignore_eos=True)])
    await rig.frames.get()
    assert not rig.failed.done()
    rig.llm.well = False if how == "says so" else OSError("its queue is closed")
    error = await rig.failed
    assert isinstance(error, RuntimeError if how == "says so" else OSError)
    while (frame := await rig.frames.get()).finish != [FinishReason.ERROR]:
        assert frame.tokens
    rig.engine.submit([request(2)])
    assert (await rig.frames.get()).errors == {2: "the engine failed"}


async def test_e4_a_request_that_fails_has_the_library_asked_at_once(rigs):
    rig = await rigs(health_interval=3600.0)
    rig.llm.well = False
    rig.llm.broken = RuntimeError("the executor is gone")
    rig.engine.submit([request(1)])
    await rig.failed


async def test_e4_a_failure_of_a_library_that_is_well_is_told_as_its_own(rigs):
    rig = await rigs(health_interval=0.001)
    rig.llm.broken = RuntimeError("the executor is gone")
    rig.engine.submit([request(1)])
    frame = await rig.frames.get()
    assert (frame.faults, rig.failed.done()) == ([1], False)


async def test_e4_parameters_that_the_library_refuses_are_the_requests_fault(rigs, monkeypatch):
    rig = await rigs()
    monkeypatch.setattr(trtllm_double.SamplingParams, "__post_init__", _refuse)
    rig.engine.submit([request(1)])
    frame = await rig.frames.get()
    assert (frame.finish, frame.faults) == ([FinishReason.ERROR], [])


def _refuse(_: Any) -> None:
    raise ValueError("no")
