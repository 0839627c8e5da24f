"""Rollouts that operators begin and steer through the real registry, beside the real controller."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from weir.registry.v1 import registry_pb2 as pb
from weir.rollout.v1 import rollout_pb2, rollout_pb2_grpc

from libs.authority.identity import Operator
from libs.config import TlsFiles
from libs.errors import Reason
from libs.registry import MemoryStore, Store
from libs.rpc import make_channel
from libs.service.process import serve
from services.rollout.app import build
from tests.integration.rollout.rollout_mesh import (
    ALIAS,
    NEW,
    OLD,
    WATCH,
    Gateway,
    Quality,
    controller,
    ended,
    following,
    history,
    populate,
    reporting,
    seconds,
    settings,
    store_of,
    until,
    write,
)
from tests.support.certificates import tls_of
from tests.support.etcd import EtcdServer
from tests.support.refusals import opened
from tests.support.registry_service import Client, refused, serving
from tests.support.registry_service import settings as registry_settings

GOOD = {OLD: Quality(), NEW: Quality()}


@contextlib.asynccontextmanager
async def registry(store: Store, folder: Path) -> AsyncIterator[Client]:
    """Its client, over a server of its own."""
    async with serving(registry_settings(folder), store) as (client, _):
        yield client


def wanted(**more: Any) -> pb.Rollout:
    made = pb.Rollout(alias=ALIAS, reason="it is better", alpha=0.05, **more)
    made.arms.add(name="canary", model_version=NEW)
    for weight in (1000, 5000):
        made.steps.add(weight=weight, min_duration=seconds(0.05), min_samples=100)
    return made


async def start(client: Client, rollout: pb.Rollout) -> pb.Rollout:
    await client.apply(rollout)
    made = await client.read(f"Rollout/{ALIAS}")
    assert isinstance(made, pb.Rollout)
    return made


def steer(how: pb.Steering) -> pb.SteerRolloutRequest:
    return pb.SteerRolloutRequest(alias=ALIAS, steering=how, change=pb.ChangeOptions(reason="I say so"))


async def prepared(store: Store) -> None:
    await populate(store)
    await write(store, pb.Slo(route="generate", tier="fast", availability=0.99))


async def test_begun_paused_resumed_and_promoted(etcd: EtcdServer, tmp_path: Path) -> None:
    store = store_of(etcd.endpoint)
    await prepared(store)
    async with (
        following(store) as view,
        controller(store) as (_, running),
        registry(store, tmp_path) as client,
        reporting(Gateway(view, f"127.0.0.1:{running.port}", GOOD)),
    ):
        begun = wanted()
        # It waits in its last step until it was paused there.
        begun.steps[1].min_duration.CopyFrom(seconds(0.3))
        made = await start(client, begun)
        assert made.baseline == OLD
        await until(view, lambda found: found.state.step == 1)
        await client.SteerRollout(steer(pb.STEERING_PAUSE))
        assert (await refused(client.apply(wanted()))).reason is Reason.CONFLICT
        await until(view, lambda found: found.state.paused)
        await client.SteerRollout(steer(pb.STEERING_RESUME))
        done = await ended(view, made.id)
        assert done.state.phase == pb.ROLLOUT_PHASE_PROMOTED
        actions = [entry.action for entry in await history(store)]
        assert actions == [
            "registry.Apply",
            "rollout.Advance",
            "rollout.Advance",
            "registry.SteerRollout",
            "registry.SteerRollout",
            "rollout.Promote",
        ]
        async with make_channel(f"127.0.0.1:{running.port}", tls=None) as channel:
            stub_rollout = rollout_pb2_grpc.RolloutServiceStub(channel)
            found = await stub_rollout.GetRollout(rollout_pb2.GetRolloutRequest(alias=ALIAS), timeout=5)
        kinds = [decision.kind for decision in found.status.decisions]
        assert kinds == ["promote", "resume", "pause", "advance", "advance", "start"]
        assert [arm.weight for arm in found.status.arms] == [0, 10_000]
    await store.close()


@pytest.mark.parametrize("field", ["kill", "freeze"])
async def test_a_switch_holds_and_lets_go(etcd: EtcdServer, tmp_path: Path, field: str) -> None:
    store = store_of(etcd.endpoint)
    await prepared(store)
    async with (
        following(store) as view,
        controller(store) as (_, running),
        registry(store, tmp_path) as client,
        reporting(Gateway(view, f"127.0.0.1:{running.port}", GOOD)),
    ):
        begun = wanted()
        begun.steps[0].min_duration.CopyFrom(seconds(1.0))
        await client.apply(begun)
        await until(view, lambda found: found.state.phase == pb.ROLLOUT_PHASE_CANARY)
        switch = pb.RolloutSwitch(reason="an incident", **{field: True})
        set_to = (await client.apply(switch)).revision
        held = await until(view, lambda found: found.state.held)
        assert "an incident" in held.state.reason
        await client.apply(pb.RolloutSwitch(revision=set_to))
        done = await ended(view, held.id)
        assert done.state.phase == pb.ROLLOUT_PHASE_PROMOTED
    await store.close()


async def test_an_abort_is_the_last_word(etcd: EtcdServer, tmp_path: Path) -> None:
    store = store_of(etcd.endpoint)
    await prepared(store)
    async with (
        following(store) as view,
        controller(store) as (_, running),
        registry(store, tmp_path) as client,
        reporting(Gateway(view, f"127.0.0.1:{running.port}", GOOD)),
    ):
        begun = wanted()
        begun.steps[0].min_duration.CopyFrom(seconds(600))
        first = await start(client, begun)
        await until(view, lambda found: found.state.phase == pb.ROLLOUT_PHASE_CANARY)
        await client.SteerRollout(steer(pb.STEERING_ABORT))
        aborted = await ended(view, first.id)
        assert aborted.state.phase == pb.ROLLOUT_PHASE_ABORTED
        # The next one starts from nothing: other counts, other decisions.
        second = await start(client, wanted())
        assert second.id != first.id
        done = await ended(view, second.id)
        assert done.state.phase == pb.ROLLOUT_PHASE_PROMOTED
        async with make_channel(f"127.0.0.1:{running.port}", tls=None) as channel:
            stub_rollout = rollout_pb2_grpc.RolloutServiceStub(channel)
            found = await stub_rollout.GetRollout(rollout_pb2.GetRolloutRequest(alias=ALIAS), timeout=5)
        assert [decision.kind for decision in found.status.decisions] == ["promote", "advance", "advance", "start"]
    await store.close()


async def test_who_may_report_and_read(tmp_path: Path) -> None:
    def tls(who: str | Operator) -> TlsFiles:
        return tls_of(tmp_path, who, "x" if who == "gateway" else "")

    store = MemoryStore()
    await prepared(store)
    await write(store, pb.RoleBinding(principal="operator:jane", roles=["viewer"]))
    config = settings(tls=tls("rollout"))
    async with serve(await build(config, store=store), config, deadline_optional=(WATCH,)) as running:
        await running.ready.wait()

        @contextlib.asynccontextmanager
        async def stub_of(who: str | Operator) -> AsyncIterator[Any]:
            target = f"127.0.0.1:{running.port}"
            async with make_channel(target, tls=tls(who), server_name="rollout.weir.internal") as channel:
                yield rollout_pb2_grpc.RolloutServiceStub(channel)

        async def denied(awaitable: Any) -> bool:
            try:
                await awaitable
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.PERMISSION_DENIED
            return False

        async def report(stub: Any, source: str = "x") -> Any:
            hello = rollout_pb2.ReportOutcomesRequest(source=source, incarnation="1")
            stream, answer = await opened(partial(stub.ReportOutcomes, timeout=20), hello)
            stream.cancel()
            return answer

        slo, scores = rollout_pb2.GetSloStatusRequest(), rollout_pb2.ReportScoresRequest()
        async with stub_of("worker") as stub:
            assert await denied(report(stub))
            assert await denied(stub.ReportScores(scores, timeout=20))
            assert await denied(stub.GetSloStatus(slo, timeout=20))
        async with stub_of("gateway") as stub:
            assert not await denied(report(stub))
            assert await denied(report(stub, "y"))  # another gateway's
            assert not await denied(stub.ReportScores(scores, timeout=20))
        async with stub_of(Operator("jane")) as stub:
            assert await denied(report(stub))
            assert await denied(stub.ReportScores(scores, timeout=20))
            assert not await denied(stub.GetSloStatus(slo, timeout=20))
        async with stub_of("probe") as stub:
            assert await denied(stub.GetSloStatus(slo, timeout=20))
    await store.close()
