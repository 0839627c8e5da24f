"""Embeddings pass admission, share the steps' budget, end with their caller and have their model read (finding B7)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Generator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from weir.inference.v1 import inference_pb2, inference_pb2_grpc
from weir.worker.v1 import worker_pb2

from libs.errors import Reason, from_rpc_error
from services.gateway.prepare import parts_of
from services.worker.engines.threaded import ThreadedEngine
from services.worker.engines.torch_engine import TorchSettings
from services.worker.engines.torch_engine.model import weight_bytes
from tests.integration.worker.worker_support import MODEL, rig
from tests.support.cores import OrderedCore
from tests.support.leaves import Rig as Mesh
from tests.support.leaves import rig as gateway_rig
from tests.support.native_stream import HEADERS
from tests.support.tokenizer import write_byte_tokenizer
from tests.unit.engine_torch import support_checkpoints as support


def asked(grant: Any, *inputs: Sequence[int], request_id: str = "r1") -> worker_pb2.EmbedRequest:
    tokens = [worker_pb2.Tokens(ids=ids) for ids in inputs]
    return worker_pb2.EmbedRequest(model_version=MODEL, inputs=tokens, grant=grant, request_id=request_id)


async def test_b7_a_worker_embeds_what_a_grant_allows_once() -> None:
    async with rig() as worker:
        grant = worker.admission.grant("r1", prompt_tokens=3, max_output_tokens=0, choices=1)
        for refused in (
            asked(None, [1, 2], [3]),  # nobody granted it
            asked(grant, [1, 2], [3], request_id="r2"),  # somebody else's
            asked(grant, [1, 2], [3, 4]),  # more than was granted
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await worker.stub.Embed(refused, timeout=10)
            assert from_rpc_error(caught.value).reason is Reason.GRANT_INVALID
        assert len((await worker.stub.Embed(asked(grant, [1, 2], [3]), timeout=10)).vectors) == 2
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker.stub.Embed(asked(grant, [1, 2], [3]), timeout=10)
        assert from_rpc_error(caught.value).reason is Reason.GRANT_REPLAYED


async def test_b7_a_caller_that_goes_away_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def embed(model: str, prompts: Any) -> list[list[float]]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return []

    async with rig() as worker:
        monkeypatch.setattr(worker.engine, "embed", embed)
        call = worker.stub.Embed(asked(worker.admission.grant("r1"), [1]), timeout=10)
        await asyncio.wait_for(begun.wait(), 10)
        call.cancel()
        await asyncio.wait_for(ended.wait(), 10)


async def test_b7_an_abandoned_embedding_is_computed_no_further() -> None:
    begun, ended = threading.Event(), threading.Event()

    class Endless(OrderedCore):
        def embed(self, model: str, prompt: Any) -> Generator[bool, None, list[float]]:
            begun.set()
            try:
                while True:
                    yield True
            finally:
                ended.set()

    engine = ThreadedEngine(Endless())
    await engine.start(lambda output: None)
    embedding = asyncio.get_running_loop().create_task(engine.embed("m@1", [[1]]))
    assert await asyncio.to_thread(begun.wait, 10)
    embedding.cancel()
    assert await asyncio.to_thread(ended.wait, 10)
    await engine.stop()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models of the same size."""
    found = {}
    for seed, name in enumerate(("a@1", "b@1")):
        found[name] = tmp_path_factory.mktemp(f"model{seed}")
        support.save_checkpoint(found[name], seed=seed)
        support.write_manifest(found[name], name)
    return found


def test_b7_between_two_steps_an_embedding_computes_what_the_budget_leaves(checkpoints: dict[str, Path]) -> None:
    folders = {"a@1": checkpoints["a@1"]}
    prompt = [5 + index % 40 for index in range(100)]
    core = support.make_core(folders, max_step_tokens=16)
    whole, one = support.embed(support.make_core(folders, max_step_tokens=128), prompt, "a@1")
    alone, pieces = support.embed(core, prompt, "a@1")
    assert (one, pieces) == (1, 7)
    assert alone == pytest.approx(whole, abs=1e-5)
    # With prompts of others in the steps, the pieces are what those leave, and no less than a block of 4.
    core.add([support.request(1, [5] * 60, model="a@1", max_tokens=2)])
    work, steps = core.embed("a@1", prompt), 0
    vector: list[float] = []
    core.step()
    while not vector:
        try:
            next(work)
        except StopIteration as done:
            vector = done.value
        steps += 1
        if core.has_work():
            core.step()
    assert steps > pieces
    assert vector == pytest.approx(whole, abs=1e-5)


def test_b7_an_evicted_model_is_read_for_an_embedding(checkpoints: dict[str, Path]) -> None:
    both = support.make_core(checkpoints)
    config = both._parts.models.shelf.configs["a@1"]
    size = weight_bytes(config, kind=TorchSettings(models={}).weights, device=torch.device("cpu"))
    core = support.make_core(checkpoints, weight_bytes=int(1.5 * size), min_residency=0.0)
    (away,) = set(checkpoints) - set(core.capacity().resident or ())
    vector, _ = support.embed(core, [5, 6, 7], away)
    assert vector == pytest.approx(support.embed(both, [5, 6, 7], away)[0], abs=1e-5)
    assert core.capacity().resident == (away,)


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    """A gateway among scripted leaves."""
    model = tmp_path / "model"
    model.mkdir()
    async with gateway_rig(write_byte_tokenizer(model), tmp_path / "state") as running:
        yield running


async def test_b7_the_gateway_asks_admission_for_every_part_and_gives_it_back(mesh: Mesh) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.EmbedRequest(model="tiny", inputs=["a" * 40, "b" * 20, "c" * 30])
        response = await stub.Embed(request, timeout=20, metadata=HEADERS)
    assert len(response.embeddings) == 3
    # The model's context is 64 tokens.
    assert [(each.prompt_tokens, each.max_output_tokens) for each in mesh.admitted] == [(60, 0), (30, 0)]
    given_back = {(await asyncio.wait_for(mesh.released.get(), 10)).request_id for _ in mesh.admitted}
    assert given_back == {each.request_id for each in mesh.admitted}
    embeds = [mesh.workers[0].embeds.get_nowait() for _ in mesh.admitted]
    assert [each.request_id for each in embeds] == [each.request_id for each in mesh.admitted]
    assert all(each.grant.mac for each in embeds)


def test_b7_parts_keep_the_order_and_the_bound() -> None:
    assert list(parts_of([[1] * 3, [2], [3] * 5, [4] * 9, [5]], 4)) == [
        [[1] * 3, [2]], [[3] * 5], [[4] * 9], [[5]]
    ]  # fmt: skip
