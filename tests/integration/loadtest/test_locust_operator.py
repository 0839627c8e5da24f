"""locust's operator at a real registry: to the other version and back; what others do goes on, nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import MemoryStore, RegistrySnapshot, RegistryView
from libs.rollouts import is_live, phase_of
from loadtest.locust.messages import Told
from loadtest.locust.rollouts import Operator
from loadtest.locust.settings import Operator as How
from tests.support.registry_service import OWNER, Client, Peers, alias, model, peers, put
from tests.support.world import SLO, canary

HOME, TWIN = "weir-fast@1", "weir-fast@1-locust"


class World:
    """A registry, a view of it, and the controller's part, played by the test."""

    def __init__(self, store: MemoryStore, view: RegistryView, mesh: Peers, client: Client) -> None:
        self.store = store
        self.client = client
        self.left = ""
        """The id of a rollout that the controller does not end."""
        self._view = view
        self._mesh = mesh

    @asynccontextmanager
    async def operator(self, *, candidate: str = "") -> AsyncIterator[Operator]:
        how = How(
            registry=self._mesh.target,
            tls=self._mesh.tls[OWNER],
            candidate=candidate,
            signing_key="",
            steps=(25, 50),
            step_seconds=1.0,
            step_samples=3,
        )
        made = Operator(how, "weir-fast")
        try:
            yield made
        finally:
            await made.close()

    async def until(self, condition: Callable[[RegistrySnapshot], bool]) -> RegistrySnapshot:
        return await self._view.wait_until(condition)

    async def ends(self, phase: pb.RolloutPhase, candidate: str, why: str = "") -> None:
        """The controller ends the rollout of this version, once there is one."""

        def begun(snapshot: RegistrySnapshot) -> bool:
            found = snapshot.rollouts.get("weir-fast", pb.Rollout(id=self.left))
            return found.id != self.left and found.arms[0].model_version == candidate and is_live(found)

        rollout = (await self.until(begun)).rollouts["weir-fast"]
        rollout.state.phase = phase
        rollout.state.reason = why
        rollout.state.ended_at.GetCurrentTime()
        await put(self.store, rollout, *([alias(candidate)] if phase == pb.ROLLOUT_PHASE_PROMOTED else []))

    async def rolled_out(self, operator: Operator, candidate: str) -> Told:
        telling = asyncio.create_task(operator.roll_out(7))
        await self.ends(pb.ROLLOUT_PHASE_PROMOTED, candidate)
        return await telling

    async def target(self) -> str:
        return str((await self.client.read("Alias/weir-fast")).targets[0].model_version)

    async def phase(self) -> pb.RolloutPhase:
        return phase_of(await self.client.read("Rollout/weir-fast"))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = MemoryStore()
    view = RegistryView(store)
    following = asyncio.create_task(view.run())
    async with peers(tmp_path, store, OWNER) as mesh:
        client = await mesh.client(OWNER)
        worker = pb.Endpoint(service="worker", instance="fast-0", address="127.0.0.1:1", pool="fast")
        await put(store, worker)
        await client.apply(model(), model(version="2"), alias(), SLO, reason="a test")
        yield World(store, view, mesh, client)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_it_rolls_a_twin_out_then_the_former_version_and_leaves_the_alias_as_it_was(world: World) -> None:
    async with world.operator() as operator:
        told = await world.rolled_out(operator, TWIN)
        assert (told.id, told.outcome) == (7, "ok")
        assert [name for name, _ in told.steps] == ["candidate", "start", "promoted"]
        back = await world.rolled_out(operator, HOME)
        assert back.outcome == "ok"
        await world.rolled_out(operator, TWIN)
        assert await world.target() == TWIN
    assert await world.target() == HOME
    twin, home = [await world.client.read(f"ModelVersion/{name}") for name in (TWIN, HOME)]
    assert twin.artifacts == home.artifacts
    assert twin.digest != home.digest


async def test_it_rolls_out_the_version_that_it_was_told(world: World) -> None:
    async with world.operator(candidate="weir-fast@2") as operator:
        assert (await world.rolled_out(operator, "weir-fast@2")).outcome == "ok"
    assert sorted(await world.client.names("ModelVersion")) == [HOME, "weir-fast@2"]


async def test_a_rollout_that_is_taken_back_says_why(world: World) -> None:
    async with world.operator() as operator:
        telling = asyncio.create_task(operator.roll_out(7))
        await world.ends(pb.ROLLOUT_PHASE_ROLLED_BACK, TWIN, "ttft is worse")
        told = await telling
    assert (told.outcome, told.note) == ("ROLLED_BACK", "ttft is worse")


async def test_given_up_it_aborts_its_own_rollout(world: World) -> None:
    async with world.operator() as operator:
        running = asyncio.create_task(operator.roll_out(7))
        await world.until(lambda snapshot: "weir-fast" in snapshot.rollouts)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert await world.phase() == pb.ROLLOUT_PHASE_ABORTED


async def test_what_a_killed_run_left_is_cleared_away(world: World) -> None:
    async with world.operator() as operator:
        await world.rolled_out(operator, TWIN)
        killed = asyncio.create_task(operator.roll_out(7))
        met = await world.until(lambda snapshot: snapshot.rollouts["weir-fast"].arms[0].model_version == HOME)
        world.left = met.rollouts["weir-fast"].id
        killed.cancel()
        await asyncio.gather(killed, return_exceptions=True)
        # The next one meets a rollout under way and the alias at the twin.
        async with world.operator() as successor:
            assert (await world.rolled_out(successor, HOME)).outcome == "ok"
    assert await world.target() == HOME


async def test_the_rollout_of_somebody_else_goes_on(world: World) -> None:
    await world.client.apply(canary(), reason="better answers")
    async with world.operator() as operator:
        told = await operator.roll_out(7)
    assert told.outcome == "CONFLICT"
    assert "under way" in told.note
    assert await world.phase() == pb.ROLLOUT_PHASE_PREPARING
