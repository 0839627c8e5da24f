"""Capacity streams, preemption, drain, engine failure, registry."""

from __future__ import annotations

import asyncio
import hashlib
import json

import grpc
import pytest
from weir.admission.v1 import admission_pb2
from weir.registry.v1 import registry_pb2
from worker_support import MODEL, rig, submission, until

from libs.errors import Reason, from_rpc_error
from libs.registry import MemoryStore, Put, keys
from services.worker.app import EngineFailedError
from services.worker.engines.port import Capacity, EngineInfo, EngineLoadError, StepOutput
from services.worker.engines.threaded import ThreadedEngine

PACED = {"step_interval": 0.003}


async def test_admission_learns_who_the_worker_is_and_how_loaded():
    async with rig(simulated=PACED, pool="demo", zone="zone-b") as r:
        hello = r.admission.hellos[0]
        assert (hello.worker, hello.address, hello.zone, hello.pool) == ("worker-a", r.address, "zone-b", "demo")
        assert (list(hello.model_versions), hello.simulated, hello.engine) == ([MODEL], True, "simulated")
        assert (hello.block_size, hello.total_blocks, hello.max_running, hello.max_context) == (16, 256, 256, 200)
        await until(lambda: r.admission.reports)
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("r1"), sampling={"max_tokens": 60}))
        await until(lambda: r.admission.reports[-1].running == 1)
        assert r.admission.reports[-1].free_blocks < 256
        await gateway.until(lambda: 1 in gateway.finished)
        await until(lambda: r.admission.reports[-1].running == 0)
        assert r.admission.reports[-1].free_blocks == 256
        count = len(r.admission.reports)
        await until(lambda: len(r.admission.reports) >= count + 2)  # nothing changes: heartbeats


async def test_a_restarted_admission_takes_the_worker_in_again_and_old_grants_still_hold():
    async with rig() as r:
        old = r.admission.grant("r1")
        await r.admission.stop()
        await r.admission.start()
        await until(lambda: len(r.admission.signers) == 2)
        gateway = await r.gateway()
        await gateway.submit(submission(1, old), submission(2, r.admission.grant("r2"), "r2"))
        await gateway.until(lambda: len(gateway.finished) == 2)


async def test_a_lost_key_is_refused_after_its_grace():
    async with rig(key_grace=0.0) as r:
        old = r.admission.grant("r1")
        await r.admission.stop()
        await r.admission.start()
        await until(lambda: len(r.admission.signers) == 2)
        gateway = await r.gateway()
        await gateway.submit(submission(1, old))
        await gateway.until(lambda: gateway.refused)
        assert gateway.refused[1].reason == Reason.GRANT_INVALID


async def test_admission_is_told_whether_the_engine_preempts():
    async with rig(simulated={"preemptive": True}) as r:
        assert r.admission.hellos[0].preemptive
    async with rig() as r:
        assert not r.admission.hellos[0].preemptive


async def test_admission_can_order_a_drain():
    async with rig(simulated=PACED) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("r1"), sampling={"max_tokens": 20}))
        await gateway.until(lambda: gateway.tokens)
        await r.admission.say(drain=admission_pb2.Drain(reason="maintenance"))
        await gateway.until(lambda: gateway.told_to_go)
        assert gateway.told_to_go == "maintenance"
        await gateway.submit(submission(2, r.admission.grant("r2"), "r2"))
        await gateway.until(lambda: 1 in gateway.finished and 2 in gateway.refused)
        assert gateway.refused[2].reason == Reason.DRAINING
        assert len(gateway.tokens[1]) == 20
        await until(lambda: r.admission.reports[-1].draining)


async def test_a_drain_lets_running_sequences_finish_and_ends_the_streams():
    async with rig(simulated=PACED) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("r1"), sampling={"max_tokens": 30}))
        await gateway.until(lambda: gateway.tokens)
        draining = asyncio.ensure_future(r.service.drain())
        await gateway.read_to_the_end()
        assert gateway.told_to_go == "draining"
        assert len(gateway.tokens[1]) == 30
        assert await gateway.rpc.code() is grpc.StatusCode.OK
        await draining
        late = r.stub.Session()
        assert await late.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_drain_past_its_grace_cuts_the_streams_so_that_gateways_go_on_elsewhere():
    async with rig(simulated={"step_interval": 0.05}, drain_grace=0.1) as r:
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("r1"), sampling={"max_tokens": 100}))
        await gateway.until(lambda: gateway.tokens)
        draining = asyncio.ensure_future(r.service.drain())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await gateway.read_to_the_end()
        assert from_rpc_error(caught.value).reason is Reason.DRAINING
        await draining
        await until(lambda: r.hub.live == 0)


class BreakingCore:
    """A core that fails at its third step."""

    info = EngineInfo(
        engine="breaking", simulated=True, models=(MODEL,), block_size=4, total_blocks=9, max_running=4, max_context=99
    )

    def __init__(self) -> None:
        self.handles: list[int] = []
        self.steps = 0

    def load(self) -> None: ...

    def add(self, requests) -> None:
        self.handles += [request.handle for request in requests]

    def cancel(self, handles) -> None: ...

    def changes(self):
        return ()

    def has_work(self) -> bool:
        return bool(self.handles)

    def step(self) -> StepOutput:
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("device lost")
        count = len(self.handles)
        return StepOutput(
            step=self.steps,
            handles=list(self.handles),
            tokens=[[5]] * count,
            finish=[0] * count,
            logprobs={},
            errors={},
            prompt_tokens_cached=dict.fromkeys(self.handles, 0),
        )

    def capacity(self) -> Capacity:
        return Capacity(
            free_blocks=9, running=len(self.handles), waiting=0, queued_prefill_tokens=0, last_step_seconds=0.0
        )

    def embed(self, model, prompt):
        yield True
        return [1.0]

    def close(self) -> None: ...


def make_broken(on_failure) -> ThreadedEngine:
    return ThreadedEngine(BreakingCore(), on_failure=on_failure)


async def test_an_engine_that_breaks_too_often_ends_the_process():
    gateway = None
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012 - the failing service cancels the block
        async with rig(make_engine=make_broken, engine_restart_limit=0) as r:
            gateway = await r.gateway()
            await gateway.submit(submission(1, r.admission.grant("r1"), sampling={"max_tokens": 90}))
            reading = asyncio.create_task(gateway.read_to_the_end())
            try:
                await asyncio.Event().wait()  # until the failed service cancels this block
            finally:
                await reading
    assert caught.group_contains(EngineFailedError)
    assert gateway is not None
    assert gateway.refused[1].reason == Reason.DRAINING  # its gateway goes on with it elsewhere
    assert gateway.finished == {}
    assert len(gateway.tokens[1]) <= 2


def model_folder(tmp_path, content: bytes = b"weights"):
    (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "config.json").write_text("{}")
    files = [
        {"path": each.name, "sha256": hashlib.sha256(each.read_bytes()).hexdigest(), "bytes": each.stat().st_size}
        for each in sorted(tmp_path.iterdir())
        if each.name != "manifest.json"
    ]
    (tmp_path / "manifest.json").write_text(json.dumps({"name": "m", "version": "1", "files": files}))
    return [registry_pb2.Artifact(path=each["path"], sha256=each["sha256"], bytes=each["bytes"]) for each in files]


async def registered(artifacts) -> MemoryStore:
    store = MemoryStore()
    await put_message(store, registry_pb2.ModelVersion(name="m", version="1", artifacts=artifacts))
    return store


async def put_message(store: MemoryStore, message) -> None:
    await store.txn(puts=[Put(keys.key_of(message), keys.encode(message))])


async def test_the_worker_finds_admission_in_the_registry_and_follows_it():
    store = MemoryStore()
    async with rig(store=store, fixed=False) as r:
        assert not r.admission.hellos
        address = f"127.0.0.1:{r.admission.port}"
        await put_message(store, registry_pb2.Endpoint(service="admission", instance="a-0", address=address))
        await until(lambda: r.admission.signers)
        gateway = await r.gateway()
        await gateway.submit(submission(1, r.admission.grant("r1")))
        await gateway.until(lambda: 1 in gateway.finished)


async def test_model_files_that_agree_with_the_registry_are_served(tmp_path):
    store = await registered(model_folder(tmp_path))
    async with rig(store=store, models={MODEL: str(tmp_path)}):
        pass


async def test_model_files_that_differ_from_the_registry_are_not_served(tmp_path):
    store = await registered(model_folder(tmp_path))
    model_folder(tmp_path, b"other weights")
    with pytest.raises(BaseExceptionGroup) as caught:
        async with rig(store=store, models={MODEL: str(tmp_path)}):
            pass
    assert caught.group_contains(EngineLoadError, match="model.safetensors has another digest")


async def test_a_version_registered_later_with_other_files_ends_the_worker(tmp_path):
    artifacts = model_folder(tmp_path)
    artifacts[0].sha256 = "0" * 64
    store = MemoryStore()
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012 - the failing service cancels the block
        async with rig(store=store, models={MODEL: str(tmp_path)}):
            await put_message(store, registry_pb2.ModelVersion(name="m", version="1", artifacts=artifacts))
            await asyncio.Event().wait()
    assert caught.group_contains(EngineLoadError)


async def test_the_engine_loads_while_the_registry_is_asked_and_serves_after_its_answer():
    loop, loading, answers, serving = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def get_prefix(self, prefix, *, since=0):
            await answers.wait()
            return await super().get_prefix(prefix, since=since)

    class Telling(BreakingCore):
        def load(self) -> None:
            loop.call_soon_threadsafe(loading.set)

    def make(on_failure) -> ThreadedEngine:
        return ThreadedEngine(Telling(), on_failure=on_failure)

    async def serve() -> None:
        async with rig(store=Slow(), make_engine=make, registry_wait=3600.0):
            serving.set()

    life = asyncio.create_task(serve())
    async with asyncio.timeout(10):
        await loading.wait()
        assert not serving.is_set()
        answers.set()
        await life
    assert serving.is_set()
