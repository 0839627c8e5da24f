"""Everything at once, by chance: slow and refusing leaves, workers that interrupt and fail, callers who leave. Whatever
became of a request, its lease is settled once, each of its grants is released once, and one record says what it was."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from weir.admission.v1 import admission_pb2
from weir.inference.v1 import inference_pb2
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2
from weir.safety.v1 import safety_pb2
from weir.worker.v1 import worker_pb2

from libs.errors import Reason, WeirError
from tests.support.leaves import FakeWorker, Handler, Leaf, Rig, Running, rig
from tests.support.native_stream import Stream, ids
from tests.support.tokenizer import write_byte_tokenizer

SAID = "abcdefghijklmnop"
MOST = 9
DEFAULT = "too busy, sorry"
Step = registry_pb2.DegradationStep
LADDER = [
    Step(cap_output=registry_pb2.CapOutput(max_tokens=4)),
    Step(cached_answer=registry_pb2.CachedAnswer()),
    Step(cpu_fallback=registry_pb2.CpuFallback(pools={"pool": "cpu"})),
    Step(default_answer=registry_pb2.DefaultAnswer(text=DEFAULT)),
]
REFUSALS = [Reason.REJECTED_QUEUE_FULL, Reason.EVICTED_SHED, Reason.EVICTED_DEADLINE, Reason.INVALID_REQUEST]


class Storm:
    """What the leaves and workers do by chance, and what they were told."""

    def __init__(self, mesh: Rig, chance: random.Random) -> None:
        self._mesh = mesh
        self._chance = chance
        self._writing = asyncio.Lock()  # one write at a time on a worker's stream
        self.granted: Counter[str] = Counter()
        self._over(mesh.quota, self._quota, slow=lambda call: call.HasField("reserve"))
        self._over(mesh.admission, self._admission, slow=lambda call: call.HasField("admit"))
        self._over(mesh.safety, self._safety, slow=lambda call: call.HasField("check_input"))
        self._over(mesh.router, lambda call: None, slow=lambda call: call.HasField("resolve"))

    def _over(self, leaf: Leaf, refuse: Callable[[Any], Any], *, slow: Callable[[Any], bool]) -> None:
        normal: Handler = leaf.handler

        def answer(call: Any, context: Any) -> Any:
            reply = refuse(call) or normal(call, context)
            if leaf is self._mesh.admission and reply.HasField("granted"):
                self.granted[call.admit.request_id] += 1
            return reply

        async def later(call: Any, context: Any) -> Any:
            await self._pause(0.02)
            return answer(call, context)

        leaf.handler = lambda call, context: (
            later(call, context) if slow(call) and self._one_in(4) else answer(call, context)
        )

    def _quota(self, call: Any) -> Any:
        if not call.HasField("reserve") or not self._one_in(10):
            return None
        return quota_pb2.QuotaReply(rejected=WeirError(Reason.QUOTA_TOKENS, "none left").to_rejection())

    def _admission(self, call: Any) -> Any:
        if not call.HasField("admit") or not self._one_in(3):
            return None
        rejected = WeirError(self._chance.choice(REFUSALS), "refused by chance").to_rejection()
        return admission_pb2.AdmissionReply(rejected=rejected)

    def _safety(self, call: Any) -> Any:
        if not call.HasField("check_input") or not self._one_in(8):
            return None
        if self._one_in(2):  # more tokens than were reserved
            verdict = safety_pb2.InputVerdict(action=safety_pb2.ACTION_REDACT, texts=["[removed]"])
        else:
            rejection = WeirError(Reason.CONTENT_FILTER, "no").to_rejection()
            verdict = safety_pb2.InputVerdict(action=safety_pb2.ACTION_BLOCK, rejection=rejection)
        return safety_pb2.SafetyReply(input=verdict)

    async def serve(self, worker: FakeWorker) -> None:
        """Run what the worker gets."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._run(await worker.submitted.get()))

    async def _run(self, running: Running) -> None:
        sampling, at = running.submit.sampling, running.submit.resumed_tokens
        end = at + sampling.max_tokens
        with contextlib.suppress(grpc.aio.BaseError, asyncio.CancelledError):
            while True:
                await self._pause(0.01)
                count = self._chance.randint(0, min(4, end - at))
                await self._write(running.tokens(ids(SAID[at : at + count])))
                at += count
                if at == end:
                    return await self._write(running.finish(worker_pb2.FINISH_REASON_LENGTH))
                fate = self._chance.random()
                if fate < 0.2:
                    return await self._write(running.refuse(Reason.PREEMPTED if fate < 0.15 else Reason.DRAINING))
                if fate < 0.25:
                    return await self._write(running.finish(worker_pb2.FINISH_REASON_ERROR, "broken by chance"))
                if fate < 0.45:
                    return await self._write(running.finish())

    async def _write(self, frame: Awaitable[None]) -> None:
        async with self._writing:
            await frame

    async def call(self) -> None:
        """One request of a caller who may leave, or cancel, at any moment."""
        parameters: dict[str, Any] = {"max_tokens": MOST, "n": self._chance.choice([1, 1, 3]), "temperature": 0.0}
        if self._one_in(5):
            parameters["stop"] = ["ef"]
        stream = Stream(self._mesh, **parameters)
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with asyncio.timeout(self._chance.random() * 0.05 if self._one_in(3) else 30):
                async with stream:
                    while not (await stream.read()).HasField("end"):
                        if self._one_in(20):
                            await stream.call.write(inference_pb2.GenerateRequest(cancel=inference_pb2.Cancel()))
        for index in range(parameters["n"]):
            said = stream.of(index)
            assert SAID.startswith(said) or said == DEFAULT

    def _one_in(self, count: int) -> bool:
        return self._chance.randrange(count) == 0

    async def _pause(self, most: float) -> None:
        await asyncio.sleep(self._chance.random() * most)


async def at_rest(mesh: Rig) -> None:
    """Everything that requests left behind has arrived where it belongs."""
    gateway = mesh.gateway
    async with asyncio.timeout(20):
        while mesh.leftovers() or gateway._quota.pending or gateway._admission.pending:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await gateway._audit.drained()


def drained(queue: asyncio.Queue[Any]) -> list[Any]:
    return [queue.get_nowait() for _ in range(queue.qsize())]


@pytest.mark.parametrize("seed", [1, 2])
async def test_everything_is_given_back_once_and_told_once(tmp_path: Path, seed: int) -> None:
    model = tmp_path / "model"
    model.mkdir()
    async with rig(write_byte_tokenizer(model), tmp_path / "state") as mesh:
        await mesh.put(registry_pb2.PlanPolicy(id="paid", ladder=LADDER if seed % 2 else LADDER[:1]))
        storm = Storm(mesh, random.Random(seed))
        workers = [asyncio.ensure_future(storm.serve(worker)) for worker in mesh.workers]
        for _ in range(8):
            await asyncio.gather(*(storm.call() for _ in range(12)))
        await at_rest(mesh)
        for serving in workers:
            serving.cancel()
        assert mesh.gateway._pipeline.parts.occupancy.entered == 0
        assert not mesh.gateway._pipeline._tasks

    reserved = {reserve.request_id: reserve for reserve in mesh.reserved}
    settles = drained(mesh.settled)
    settled = {settle.request_id: settle for settle in settles}
    assert len(settles) == len(settled)
    assert reserved.keys() <= settled.keys()
    assert all(settle.tokens <= reserved[of].tokens for of, settle in settled.items() if of in reserved)
    released = Counter(release.request_id for release in drained(mesh.released))
    assert storm.granted.keys() <= released.keys()
    assert max(released.values()) == 1
    records = [record.request for record in drained(mesh.records)]
    assert len(records) == len({record.request_id for record in records})
    paid: Counter[str] = Counter()
    for lease, settle in settled.items():
        paid[lease.partition("/")[0]] += settle.tokens
    for record in records:
        assert paid[record.request_id] == record.prompt_tokens + record.completion_tokens, record
    outcomes = Counter(record.outcome for record in records)
    assert outcomes.keys() >= {"stop", "length", "rejected"}, outcomes
