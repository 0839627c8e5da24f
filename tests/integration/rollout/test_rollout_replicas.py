"""Two replicas as processes of their own: the one that decides is killed, and the other goes on where it was."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from weir.registry.v1 import registry_pb2
from weir.rollout.v1 import rollout_pb2 as pb
from weir.rollout.v1 import rollout_pb2_grpc

from libs.registry import RegistrySnapshot, RegistryView, keys
from libs.rpc import make_channel
from tests.integration.rollout.rollout_mesh import (
    ALIAS,
    BOUND,
    NEW,
    OLD,
    Gateway,
    Quality,
    ended,
    following,
    history,
    populate,
    reporting,
    rollout,
    seconds,
    settings,
    store_of,
    until,
    write,
)
from tests.support.etcd import EtcdServer

ROOT = Path(__file__).resolve().parents[3]


@contextlib.asynccontextmanager
async def process(etcd: EtcdServer, folder: Path, instance: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A replica."""
    config = folder / f"{instance}.json"
    config.write_bytes(msgspec.json.encode(settings(instance, etcd=(etcd.endpoint,))))
    command = (sys.executable, "-m", "services.rollout", "--config", str(config))
    child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        await child.wait()


async def address_of(view: RegistryView, instance: str) -> str:
    def there(snapshot: RegistrySnapshot) -> bool:
        return ("rollout", instance) in snapshot.endpoints

    async with asyncio.timeout(BOUND):
        return (await view.wait_until(there)).endpoints["rollout", instance].address


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
async def test_the_other_replica_goes_on(etcd: EtcdServer, tmp_path: Path, kill: bool) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    quality = {OLD: Quality(), NEW: Quality()}
    async with following(store) as view, process(etcd, tmp_path, "rollout-0") as first:
        # A gateway reports to every replica; each of these has the same counts.
        one = await address_of(view, "rollout-0")
        async with process(etcd, tmp_path, "rollout-1"):
            two = await address_of(view, "rollout-1")
            gateway = Gateway(view, one, quality)
            async with reporting(gateway), reporting(gateway.also(two)):
                planned = rollout(steps=(1000, 5000))
                planned.steps[1].min_duration.CopyFrom(seconds(2.0))  # until the first one is gone
                await write(store, planned)
                canary = registry_pb2.ROLLOUT_PHASE_CANARY
                await until(view, lambda found: found.state.phase == canary and found.state.step == 1)
                leader = await store.get(keys.LEADERS + "rollout")
                assert leader is not None
                assert leader.value == b"rollout-0"
                if kill:
                    first.kill()
                else:
                    first.terminate()
                done = await ended(view)
                async with make_channel(two, tls=None) as channel:
                    stub = rollout_pb2_grpc.RolloutServiceStub(channel)
                    status = (await stub.GetRollout(pb.GetRolloutRequest(alias=ALIAS), timeout=5)).status
    assert done.state.phase == registry_pb2.ROLLOUT_PHASE_PROMOTED
    entries = await history(store)
    assert [entry.action for entry in entries] == [
        "rollout.Prepare",
        "rollout.Advance",
        "rollout.Advance",
        "rollout.Promote",
    ]
    assert [entry.actor for entry in entries] == ["controller/rollout-0"] * 3 + ["controller/rollout-1"]
    # Whoever leads tells all decisions, those of the one before it too.
    assert status.leader
    assert [decision.by for decision in status.decisions] == [entry.actor for entry in reversed(entries)]
    await store.close()
