"""What a call says of its rollout's arm and of the objectives, beside what its caller got."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, from_rpc_error
from services.predictor.books import Books
from services.predictor.config import Targets
from services.predictor.executors import Barred, Crashed
from services.predictor.port import ModelError
from tests.integration.rollout.rollout_mesh import seconds
from tests.support.predictor import Rig, question, running, told, trees, until

X = np.ones((1, 4), np.float32)
NOBODY = "127.0.0.1:1"
SLO = pb.Slo(route="predict", tier="classical", availability=0.999, e2e_p95=seconds(1))
ROLLOUT = pb.Rollout(
    alias="m",
    id="r1",
    baseline="m@1",
    arms=[pb.RolloutArm(name="canary", model_version="m@2")],
    steps=[pb.RolloutStep(weight=10_000)],
    sticky=pb.STICKY_BY_USER,
    reason="a test",
    state=pb.RolloutState(phase=pb.ROLLOUT_PHASE_CANARY, weights=[10_000]),
)
REFUSED = ModelError("the program refuses the inputs")


class Arms:
    """A predictor whose callers are all a canary's, and what is known of that one."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = rig
        self.faults: dict[str, Exception] = {}
        executors = rig.predictor._executors
        run = executors.run

        async def faulty(version: str, inputs: Any, **more: Any) -> Any:
            if version in self.faults:
                raise self.faults[version]
            return await run(version, inputs, **more)

        monkeypatch.setattr(executors, "run", faulty)
        monkeypatch.setattr(executors, "bars", lambda version, _: isinstance(self.faults.get(version), Barred))

    @property
    def canary(self) -> tuple[int, int]:
        """Calls that began there, and those that failed."""
        table = self._table
        found = next((table.arm(key) for key in table._arms if key.arm == "canary"), None)
        return (sum(found.cohorts.started), found.errors) if found is not None else (0, 0)

    @property
    def users(self) -> tuple[int, int]:
        """Calls that were good and bad for the route's availability."""
        found = self._table.objectives("predict", "classical")
        if found is None:
            return 0, 0
        events = found.objectives["availability"]
        return events.good, events.bad

    @property
    def _table(self) -> Any:
        books = self.rig.predictor._books
        assert books is not None
        return books.account._outcomes.table

    async def refused(self) -> Reason:
        """Why a call that takes nothing instead is refused."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.rig.infer(question(X, degradable=False), x_weir_user="u")
        return from_rpc_error(caught.value).reason


@pytest.fixture
async def arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Arms]:
    async with contextlib.AsyncExitStack() as stack:
        rig = await stack.enter_async_context(
            running(
                tmp_path,
                books=Books,
                targets=Targets(ratelimit=NOBODY, audit=NOBODY),
                leaf_patience=0.0,
                state_dir=str(tmp_path / "state"),
            )
        )
        await rig.put(SLO)
        await rig.pushed("1")
        await rig.pushed("2", alias="", spec=trees(smaller=["m@1"]))
        await rig.put(ROLLOUT)
        for version in ("m@1", "m@2"):
            await rig.loaded(version)
        catalog = rig.predictor._catalog
        await until(lambda: "m" in catalog.snapshot.rollouts)
        yield Arms(rig, monkeypatch)


@pytest.mark.parametrize("fault", [Crashed("it broke"), REFUSED])
async def test_what_the_ladder_answers_its_version_failed_at(arms: Arms, fault: Exception) -> None:
    arms.faults["m@2"] = fault
    answer = await arms.rig.infer(question(X), x_weir_user="u")
    assert (told(answer)["weir_version"], told(answer)["weir_degraded"]) == ("m@1", "smaller_version")
    assert (arms.canary, arms.users) == ((1, 1), (1, 0))
    assert await arms.refused() is Reason.ENGINE_ERROR
    assert (arms.canary, arms.users) == ((2, 2), (1, 1))


async def test_what_the_baseline_refuses_too_is_the_callers_own(arms: Arms) -> None:
    arms.faults = {"m@2": REFUSED, "m@1": REFUSED}
    assert await arms.refused() is Reason.INVALID_REQUEST
    assert (arms.canary, arms.users) == ((1, 0), (0, 0))


async def test_a_tenant_that_is_kept_out_says_nothing_of_the_version(arms: Arms) -> None:
    arms.faults["m@2"] = Barred(42.0)
    assert await arms.refused() is Reason.REJECTED_QUEUE_FULL
    assert (arms.canary, arms.users) == ((0, 0), (0, 0))
    await arms.rig.infer(question(X), x_weir_user="u")
    assert (arms.canary, arms.users) == ((0, 0), (1, 0))
