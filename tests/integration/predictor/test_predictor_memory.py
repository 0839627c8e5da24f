"""A predictor whose versions do not all fit in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import numpy as np
import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, from_rpc_error
from tests.support.predictor import Rig, booster, question, running, scores, trees, until

MIB = 1 << 20
BALLAST = {"ballast.bin": bytes(64 * MIB)}
"""A version takes what its files have at least, whatever its process grows by."""
ROWS = np.random.default_rng(7).normal(size=(5, 4)).astype(np.float32)


def states(rig: Rig) -> dict[str, pb.ModelState]:
    return {each.model_version: each for each in rig.predictor.endpoint_extra()["model_states"]}


async def alone(rig: Rig, version: str) -> None:
    """Wait until this one is loaded and no other."""

    def there() -> bool:
        ready = [name for name, each in states(rig).items() if each.state == pb.LOAD_STATE_READY]
        return ready == [version] == rig.predictor.endpoint_extra()["model_versions"]

    await until(there, 120.0)


async def test_what_is_asked_for_is_loaded_and_what_was_asked_for_longest_ago_leaves(tmp_path: Path) -> None:
    async with running(tmp_path, memory_bytes=100 * MIB) as rig:
        await rig.pushed(name="a", alias="a", files=BALLAST)
        await alone(rig, "a@1")
        first = scores(await rig.infer(question(ROWS, "a")))
        assert 64 * MIB <= states(rig)["a@1"].memory_bytes <= 100 * MIB
        await rig.pushed(name="b", alias="b", files=BALLAST | {"model.ubj": booster(seed=2)})
        await alone(rig, "b@1")
        assert states(rig)["a@1"].state == pb.LOAD_STATE_UNLOADED
        assert states(rig)["a@1"].detail
        assert len(scores(await rig.infer(question(ROWS, "b")))) == 5
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rig.infer(question(ROWS, "a"))
        refusal = from_rpc_error(caught.value)
        assert (refusal.reason, refusal.retry_after) == (Reason.NO_WORKERS, 1.0)
        assert ("x-envoy-ratelimited", "true") in tuple(caught.value.trailing_metadata() or ())
        await alone(rig, "a@1")
        np.testing.assert_array_equal(scores(await rig.infer(question(ROWS, "a"))), first)
        assert states(rig)["b@1"].state == pb.LOAD_STATE_UNLOADED


async def test_a_batch_that_runs_ends_before_its_version_makes_room(tmp_path: Path) -> None:
    async with running(tmp_path, memory_bytes=100 * MIB) as rig:
        await rig.pushed(name="a", alias="a", files=BALLAST)
        await alone(rig, "a@1")
        with rig.executors_busy("a@1") as waiting:
            asking = asyncio.create_task(rig.infer(question(ROWS, "a"), seconds=60.0))
            await until(lambda: waiting() == 5)
            await rig.pushed(name="b", alias="b", files=BALLAST)
            await rig.loaded("b@1", pb.LOAD_STATE_UNLOADED)
            assert states(rig)["a@1"].state == pb.LOAD_STATE_READY
        assert len(scores(await asking)) == 5
        await alone(rig, "b@1")


async def test_a_version_that_is_bigger_than_the_bound_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, memory_bytes=32 * MIB) as rig:
        await rig.pushed(name="a", alias="a", files=BALLAST)
        failed = await rig.loaded("a@1", pb.LOAD_STATE_FAILED)
        assert failed.detail.startswith("a@1 takes ")
        assert str(32 * MIB) in failed.detail
        # Its files are small: what it takes is seen when it is loaded.
        await rig.pushed(name="b", alias="b", spec=trees(lane="process"))
        failed = await rig.loaded("b@1", pb.LOAD_STATE_FAILED)
        assert failed.detail.startswith("b@1 takes ")
        assert rig.predictor.endpoint_extra()["model_versions"] == []
