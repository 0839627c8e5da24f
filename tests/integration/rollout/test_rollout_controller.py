"""The rollout controller as a real server over a real etcd."""

from __future__ import annotations

from weir.registry.v1 import registry_pb2

from tests.integration.rollout.rollout_mesh import (
    ALIAS,
    NEW,
    OLD,
    Gateway,
    Quality,
    controller,
    ended,
    following,
    history,
    populate,
    reporting,
    rollout,
    store_of,
    write,
)
from tests.support.etcd import EtcdServer

GOOD = {OLD: Quality(), NEW: Quality()}


async def test_a_healthy_canary_gets_everything(etcd: EtcdServer) -> None:
    store = store_of(etcd.endpoint)
    await populate(store)
    async with following(store) as view, controller(store) as (_, running):
        await write(store, rollout())
        async with reporting(Gateway(view, f"127.0.0.1:{running.port}", GOOD)):
            done = await ended(view)
        assert done.state.phase == registry_pb2.ROLLOUT_PHASE_PROMOTED
        assert [target.model_version for target in view.snapshot.aliases[ALIAS].targets] == [NEW]
        kinds = [entry.action for entry in await history(store)]
        assert kinds == ["rollout.Prepare", *["rollout.Advance"] * 2, "rollout.Promote"]
    await store.close()
