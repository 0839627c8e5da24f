"""Streams to workers: the fault of one sequence is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from weir.admission.v1 import admission_pb2
from weir.worker.v1 import worker_pb2

from libs.errors import Reason, WeirError
from services.gateway.clients.workers import WorkerStreams
from services.gateway.config import Settings
from services.gateway.policy.events import Finish
from tests.support.leaves import FakeWorker, Running
from tests.support.native_stream import taken


class Sequenced:
    """A sequence that writes down what it is told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[str] = asyncio.Queue()

    def on_tokens(self, ids: Sequence[int], logprobs: Any) -> None:
        self.told.put_nowait("tokens")

    def on_first(self, cached_prompt_tokens: int, after: float, numerics: str) -> None:
        self.told.put_nowait("first")

    def on_finished(self, finish: Finish, message: str) -> None:
        self.told.put_nowait("finished")

    def on_refused(self, refusal: worker_pb2.Refusal) -> None:
        self.told.put_nowait("refused")

    def on_worker_lost(self) -> None:
        self.told.put_nowait("lost")

    def on_fault(self) -> None:
        self.told.put_nowait("fault")

    async def next(self) -> str:
        return await asyncio.wait_for(self.told.get(), 10)


class Faulty(Sequenced):
    """One that fails whatever it is told."""

    def _fail(self, *told: Any) -> None:
        raise RuntimeError("its own fault")

    on_tokens = on_first = on_finished = on_refused = on_worker_lost = _fail


class Pair:
    """A faulty sequence before a sound one, both running on one worker."""

    def __init__(self, worker: FakeWorker, runs: list[Running], faulty: Faulty, sound: Sequenced) -> None:
        self.worker = worker
        self.runs = runs
        self.faulty = faulty
        self.sound = sound

    @property
    def handles(self) -> list[int]:
        return [run.submit.handle for run in self.runs]

    async def send(self, response: worker_pb2.SessionResponse) -> None:
        await self.runs[0].stream.send(response)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    worker = FakeWorker("worker-a")
    await worker.start()
    streams = WorkerStreams(Settings(service="gateway", instance="gateway-0"), flush=lambda: None)
    running = asyncio.create_task(streams.run())
    await asyncio.sleep(0)
    faulty, sound = Faulty(), Sequenced()
    granted = admission_pb2.Granted(worker=worker.name, address=f"127.0.0.1:{worker.port}")
    streams.submit(granted, [(worker_pb2.Submit(), faulty), (worker_pb2.Submit(), sound)])
    yield Pair(worker, [await taken(worker), await taken(worker)], faulty, sound)
    assert not running.done(), "one sequence's fault ended all streams"
    running.cancel()
    await asyncio.wait((running,))
    await worker.stop()


async def test_e8_each_sequence_of_a_frame_hears_of_its_own(pair: Pair) -> None:
    frame = worker_pb2.StepFrame(handles=pair.handles, counts=[1, 1], tokens=[7, 8])
    for handle in pair.handles:
        frame.first.add(handle=handle)
        frame.finished.add(handle=handle, reason=worker_pb2.FINISH_REASON_STOP)
    await pair.send(worker_pb2.SessionResponse(step=frame))
    assert [await pair.sound.next() for _ in range(3)] == ["first", "tokens", "finished"]
    assert await pair.faulty.next() == "fault"


async def test_e8_each_refused_sequence_hears_of_it(pair: Pair) -> None:
    refusals = worker_pb2.Refusals()
    for handle in pair.handles:
        refusals.items.add(handle=handle, rejection=WeirError(Reason.DRAINING, "leaving").to_rejection())
    await pair.send(worker_pb2.SessionResponse(refusals=refusals))
    assert await pair.sound.next() == "refused"
    assert await pair.faulty.next() == "fault"


async def test_e8_each_sequence_of_a_lost_worker_hears_of_it(pair: Pair) -> None:
    await pair.worker.stop()
    assert await pair.sound.next() == "lost"
    assert await pair.faulty.next() == "fault"
