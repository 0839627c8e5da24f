"""A controller that dies at a hold, a resumption, an easing or the start of an experiment is followed by one that
leaves the same state and the same history behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from weir.registry.v1 import registry_pb2

from libs.registry import RegistryView
from tests.integration.rollout.rollout_mesh import (
    ALIAS,
    BOUND,
    NEW,
    OLD,
    Gateway,
    MortalStore,
    Quality,
    controller,
    following,
    history,
    populate,
    reporting,
    rollout,
    seconds,
    settings,
    store_of,
    until,
    version,
    worker,
    write,
)
from tests.support.etcd import EtcdServer

WORSE = "weir-fast@3"
PATIENT = {"stale_seconds": BOUND, "leader_ttl": 10.0}
"""However slow the machine is, nobody is taken for gone but the one who is."""
QUALITY = {OLD: Quality(), NEW: Quality(), WORSE: Quality(errors=0.3)}
AROUND = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


@contextlib.asynccontextmanager
async def doomed(store: MortalStore, view: RegistryView, batch: int = 400) -> AsyncIterator[None]:
    """A controller that dies as the store says, another that waits for its turn, and a gateway that reports to both."""
    async with controller(store, settings("rollout-0", **PATIENT)) as (leads, first):  # type: ignore[arg-type]
        async with asyncio.timeout(BOUND):
            while leads.election.leadership is None:
                changed = asyncio.Event()
                leads.election.on_change(changed.set)
                await changed.wait()
        async with controller(store_of_heir(store), settings("rollout-1", **PATIENT)) as (_, second):
            gateway = Gateway(view, f"127.0.0.1:{first.port}", QUALITY, batch=batch)
            async with reporting(gateway), reporting(gateway.also(f"127.0.0.1:{second.port}")):
                burial = asyncio.create_task(bury(store))
                yield
                async with asyncio.timeout(BOUND):
                    await burial


def store_of_heir(store: MortalStore):  # type: ignore[no-untyped-def]
    """The same store, for somebody who lives."""
    return store._store


async def bury(store: MortalStore) -> None:
    """As etcd does when the dead leader's lease has run out."""
    await store.dead.wait()
    await store_of_heir(store).lease_revoke(store.leases[-1])


@AROUND
@pytest.mark.parametrize("action", ["Hold", "Resume"])
async def test_at_a_hold_and_its_end(etcd: EtcdServer, action: str, after: bool) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    planned = rollout(steps=(1000,))
    planned.steps[0].min_duration.CopyFrom(seconds(600))
    planned.alpha = 0.001
    mortal = MortalStore(store, action=f"rollout.{action}", times=1, after=after)
    async with following(store) as view, doomed(mortal, view):
        await write(store, planned)
        await until(view, lambda found: found.state.phase == registry_pb2.ROLLOUT_PHASE_CANARY)
        await write(store, registry_pb2.RolloutSwitch(freeze=True, reason="an incident"))
        await until(view, lambda found: found.state.held and "an incident" in found.state.reason)
        await write(store, registry_pb2.RolloutSwitch())
        await until(view, lambda found: not found.state.held)
        async with asyncio.timeout(BOUND):
            await mortal.dead.wait()
        assert list(view.snapshot.rollouts[ALIAS].state.weights) == [1000]
        assert [entry.action.partition(".")[2] for entry in await history(store)] == [
            "Prepare",
            "Advance",
            "Hold",
            "Resume",
        ]
    await store.close()


@AROUND
async def test_at_an_easing(etcd: EtcdServer, after: bool) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    # Few requests at a time: those that a gateway sent by the old weights do not ease it once more.
    planned = rollout(steps=(1000,), blast_radius=registry_pb2.BlastRadius(max_share=500))
    planned.steps[0].min_duration.CopyFrom(seconds(600))
    planned.alpha = 0.001
    mortal = MortalStore(store, action="rollout.Ease", times=1, after=after)
    async with following(store) as view, doomed(mortal, view, batch=40):
        await write(store, planned)
        await until(view, lambda found: list(found.state.weights) == [500])
        async with asyncio.timeout(BOUND):
            await mortal.dead.wait()
        entries = await history(store)
        assert [entry.action.partition(".")[2] for entry in entries] == ["Prepare", "Advance", "Ease"]
        assert "the most is 5%; weight 10% → 5%" in entries[-1].reason
    await store.close()


@AROUND
@pytest.mark.parametrize("action", ["Advance", "Ease"])
async def test_in_an_experiment(etcd: EtcdServer, action: str, after: bool) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    await write(store, version("weir-fast", "3"))
    await write(store, *(worker(name, OLD, NEW, WORSE) for name in ("worker-a", "worker-b")))
    planned = rollout(steps=())
    planned.arms[0].name, planned.arms[0].weight = "b", 2000
    planned.arms.add(name="c", model_version=WORSE, weight=2000)
    planned.alpha = 0.001
    mortal = MortalStore(store, action=f"rollout.{action}", times=1, after=after)
    async with following(store) as view, doomed(mortal, view):
        await write(store, planned)
        await until(view, lambda found: list(found.state.weights) == [2000, 0])
        async with asyncio.timeout(BOUND):
            await mortal.dead.wait()
        entries = await history(store)
        assert [entry.action.partition(".")[2] for entry in entries] == ["Prepare", "Advance", "Ease"]
        assert entries[-1].reason.startswith("c taken out: error rate of c is ")
        assert view.snapshot.rollouts[ALIAS].state.phase == registry_pb2.ROLLOUT_PHASE_EXPERIMENT
    await store.close()
