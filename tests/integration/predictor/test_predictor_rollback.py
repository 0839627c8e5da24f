"""A version that fails is found out by what the predictor reports, and taken off by the controller: the real two, over
one registry."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from weir.registry.v1 import registry_pb2 as pb

from services.predictor.books import Books
from services.predictor.config import Targets
from services.predictor.executors import Crashed
from services.predictor.port import ModelError
from tests.integration.rollout.rollout_mesh import controller, following, seconds
from tests.support.audit import KeptStore
from tests.support.predictor import Rig, question, running, trees, until

X = np.ones((1, 4), np.float32)
NOBODY = "127.0.0.1:1"
SLO = pb.Slo(route="predict", tier="classical", availability=0.999, e2e_p95=seconds(0.025))


@contextlib.asynccontextmanager
async def mesh(root: Path, *, smaller: bool) -> AsyncIterator[Rig]:
    """A predictor with two versions, the second with a ladder or none, and a controller that it reports to."""
    async with contextlib.AsyncExitStack() as stack:
        rig = await stack.enter_async_context(
            running(
                root,
                store=KeptStore(),
                books=Books,
                targets=Targets(ratelimit=NOBODY, audit=NOBODY),
                leaf_patience=0.0,
                state_dir=str(root / "state"),
            )
        )
        for version, alias in (("1", "m"), ("2", "")):
            ladder = ["m@1"] if smaller and version == "2" else []
            await rig.pushed(version, alias=alias, spec=trees(smaller=ladder))
        await rig.put(SLO, pb.Pin(model_version="m@2", reason="a test", warm=True))
        for version in ("m@1", "m@2"):
            await rig.loaded(version)
        _, served = await stack.enter_async_context(controller(rig.store))
        versions = ["m@1", "m@2"]
        await rig.put(
            pb.Endpoint(service="predictor", instance="predictor-a", pool="predict", model_versions=versions),
            pb.Endpoint(service="rollout", instance="rollout-0", address=f"127.0.0.1:{served.port}"),
        )
        yield rig


def rollout(**more: Any) -> pb.Rollout:
    made = pb.Rollout(
        alias="m",
        id="r1",
        baseline="m@1",
        arms=[pb.RolloutArm(name="canary", model_version="m@2")],
        sticky=pb.STICKY_BY_USER,
        reason="a test",
        alpha=0.05,
        **more,
    )
    made.steps.add(weight=3000, min_duration=seconds(60), min_samples=100_000)
    made.state.phase = pb.ROLLOUT_PHASE_PREPARING
    return made


class Traffic:
    """Calls of many users, and when each version was last asked to run."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = rig
        self.last: dict[str, float] = {}
        self.spoilt = ""
        self.fault: Exception | None = None
        self.delay = 0.0
        self._users = itertools.count()
        executors = rig.predictor._executors
        run = executors.run

        async def watched(version: str, inputs: Any, **more: Any) -> Any:
            self.last[version] = time.monotonic()
            if version == self.spoilt and self.fault is not None:
                raise self.fault
            if version == self.spoilt:
                await asyncio.sleep(self.delay)  # that is what a slow version does
            return await run(version, inputs, **more)

        monkeypatch.setattr(executors, "run", watched)

    async def call(self) -> None:
        """One user's, who may get an error."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self.rig.infer(question(X), x_weir_user=f"u{next(self._users) % 400}")

    async def until_over(self) -> tuple[float, pb.Rollout]:
        """Calls go on until the rollout has ended, and a while longer; when that was written."""
        async with following(self.rig.store) as view, asyncio.timeout(50):

            def over(snapshot: Any) -> bool:
                return "m" in snapshot.rollouts and snapshot.rollouts["m"].state.HasField("ended_at")

            ended = asyncio.ensure_future(view.wait_until(over))
            while not ended.done():
                await asyncio.gather(*(self.call() for _ in range(8)))
            at = time.monotonic()
            for _ in range(40):
                await asyncio.gather(*(self.call() for _ in range(8)))
            return at, (await ended).rollouts["m"]


@pytest.mark.parametrize(
    ("fault", "smaller"),
    [
        (Crashed("it broke"), False),
        (Crashed("it broke"), True),  # its callers are all answered, by the version before
        (ModelError("the program refuses the inputs"), False),  # which are the ones that the version before takes
        (None, False),
    ],
    ids=["breaks", "breaks-and-is-stood-in-for", "refuses", "is-slow"],
)
async def test_a_version_that_fails_or_is_slow_gets_nothing_any_more_within_a_second_of_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception | None, smaller: bool
) -> None:
    async with mesh(tmp_path, smaller=smaller) as rig:
        traffic = Traffic(rig, monkeypatch)
        traffic.spoilt, traffic.fault, traffic.delay = "m@2", fault, 0.05
        await rig.put(
            rollout(gates=[pb.Gate(metric="error_rate", tolerance=0.01), pb.Gate(metric="latency", tolerance=0.5)])
        )
        await until(lambda: "m" in rig.predictor._catalog.snapshot.rollouts)
        decided, found = await traffic.until_over()
        assert found.state.phase == pb.ROLLOUT_PHASE_ROLLED_BACK
        assert ("latency" if fault is None else "error rate") in found.state.reason
        assert traffic.last["m@2"] - decided <= 1.0
        assert traffic.last["m@1"] > traffic.last["m@2"]
