"""`Watch`, `List` and `Get` on the wire, while writers write, over a real etcd and over its faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.changes import resource_of
from libs.errors import Reason, WeirError
from libs.registry import EtcdStore, MemoryStore, keys
from libs.resources.codec import key_of
from libs.resources.kinds import KINDS
from tests.support.etcd import EtcdServer
from tests.support.registry_service import (
    Client,
    named,
    outcomes,
    put,
    refused,
    resource,
    serving,
    settings,
    stored,
    tenant,
)
from tests.support.world import BUDGET, SLO, WORKER, applied, observed

LIMITS = pb.Limits(tenant="acme", model="*")


@pytest.fixture
async def etcd_store(etcd: EtcdServer) -> AsyncIterator[EtcdStore]:
    store = EtcdStore([etcd.endpoint])
    yield store
    await store.close()


class Follower:
    """What a watcher knows of the registry, as it is told."""

    def __init__(self, client: Client, *kinds: str, **more: Any) -> None:
        self._stream = client.Watch(pb.WatchRequest(kinds=kinds, **more))
        self.known: dict[str, bytes] = {}
        self.revision = 0
        self.messages = 0

    async def reach(self, revision: int) -> dict[str, bytes]:
        """What is known once everything up to the revision was told."""
        while self.revision < revision:
            answer: pb.WatchResponse = await self._stream.read()
            self.messages += 1
            assert answer.revision >= self.revision
            for each in answer.resources:
                self.known[resource_of(key_of(each))] = each.SerializeToString(deterministic=True)
            for each in answer.deleted:
                kind = next(kind for kind in KINDS if kind.name == each.kind)
                self.known.pop(f"{kind.plural}/{each.name}", None)
            if not answer.more:
                self.revision = answer.revision
        return self.known


async def listed(client: Client, *kinds: str, **more: Any) -> dict[str, bytes]:
    found = await client.listed(*kinds, **more)
    return {resource_of(key_of(each)): each.SerializeToString(deterministic=True) for each in found}


async def test_watchers_from_anywhere_end_with_what_is_listed(tmp_path: Path, etcd_store: EtcdStore) -> None:
    await put(etcd_store, WORKER)
    async with serving(settings(tmp_path), etcd_store) as (client, _):
        start = (await client.apply(*applied())).revision
        early = Follower(client, "Tenant", "Limits")

        async def write(number: int) -> None:
            for turn in range(10):
                name = f"t{number}-{turn % 4}"
                await client.apply(tenant(name, display_name=str(turn)), pb.Limits(tenant=name, model="*"))
                if turn % 3 == 0:
                    await client.delete(f"Tenant/{name}", f"Limits/{name}/*")

        async def page() -> None:
            """Pages of one list hold at one revision: of each pair there are both or neither."""
            for _ in range(5):
                request, names = pb.ListRequest(kinds=["Tenant", "Limits"], page_size=3), list[str]()
                revisions = set()
                while True:
                    answer = await client.List(request)
                    names += [f"{each.WhichOneof('spec')}/{each.metadata.name}" for each in answer.resources]
                    revisions.add(answer.revision)
                    if not answer.next_page_token:
                        break
                    request.page_token = answer.next_page_token
                pairs = {name.removeprefix("tenant/") for name in names if name.startswith("tenant/t")}
                assert {f"limits/{name}/*" for name in pairs} == {name for name in names if name.startswith("limits/t")}
                assert len(revisions) == 1

        await asyncio.gather(*(write(number) for number in range(3)), page(), page())
        end = (await client.apply(tenant("end"))).revision
        expected = await listed(client, "Tenant", "Limits")
        late = Follower(client, "Tenant", "Limits")
        resumed = Follower(client, "Tenant", "Limits", from_revision=start + 1)
        resumed.known = {
            name: value
            for name, value in (await early.reach(start)).items()
            if name in {"tenants/acme", "tenants/globex", "limits/acme/weir-fast"}
        }
        for follower in (early, late, resumed):
            assert await follower.reach(end) == expected
        assert late.messages == 1


async def test_a_transaction_is_one_message_whatever_its_size(tmp_path: Path) -> None:
    async with serving(settings(tmp_path), MemoryStore()) as (client, _):
        stream = client.Watch(pb.WatchRequest(kinds=["Tenant"]))
        assert not (await stream.read()).resources
        done = await client.apply(*(tenant(f"t{number:03}") for number in range(400)))
        answer = await stream.read()
        assert (len(answer.resources), answer.more) == (400, False)
        assert {each.metadata.revision for each in answer.resources} == {answer.revision} == {done.revision}
        done = await client.apply(*(tenant(f"t{number:04}") for number in range(1200)))
        parts = [await stream.read() for _ in range(3)]
        assert [(len(each.resources), each.more) for each in parts] == [(500, True), (500, True), (200, False)]
        assert {each.revision for each in parts} == {done.revision}


async def test_by_label(tmp_path: Path) -> None:
    async with serving(settings(tmp_path), MemoryStore()) as (client, _):
        await client.apply(resource(tenant("a"), labels={"team": "x"}), tenant("b"))
        assert list(await listed(client, selector="team=x")) == ["tenants/a"]
        stream = client.Watch(pb.WatchRequest(selector="team=x"))
        assert [each.metadata.name for each in (await stream.read()).resources] == ["a"]
        await client.apply(tenant("a"), resource(tenant("b"), labels={"team": "x"}))
        answer = await stream.read()
        assert [each.metadata.name for each in answer.resources] == ["b"]
        assert list(answer.deleted) == [named("Tenant/a", answer.revision)]
        for call in (listed(client, selector="=x"), client.Watch(pb.WatchRequest(selector="=x")).read()):
            assert (await refused(call)).limit == "selector"


async def test_what_is_asked_wrongly(tmp_path: Path) -> None:
    async with serving(settings(tmp_path), MemoryStore()) as (client, _):
        for request, limit in (
            (pb.WatchRequest(kinds=["Tennant"]), "kinds"),
            (pb.WatchRequest(from_revision=-1), "from_revision"),
        ):
            error = await refused(client.Watch(request).read())
            assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, limit)
        for wrong in ("", "tenants", "Tennant"):
            assert (await refused(client.get(f"{wrong}/a"))).reason is Reason.INVALID_REQUEST
        assert (await refused(client.get("Tenant/a"))).reason is Reason.NOT_FOUND
        error = await refused(client.List(pb.ListRequest(page_token="mine:0")))
        assert (error.reason, error.limit) == (Reason.REVISION_GONE, "page_token")


async def test_a_token_is_of_the_process_that_gave_it(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (one, _), serving(settings(tmp_path), store) as (two, _):
        await one.apply(*(tenant(f"t{number}") for number in range(5)))
        first = await one.List(pb.ListRequest(page_size=2))
        assert first.next_page_token
        again = pb.ListRequest(page_size=2, page_token=first.next_page_token)
        assert (await refused(two.List(again))).reason is Reason.REVISION_GONE
        assert (await one.List(again)).revision == first.revision


async def test_one_of_every_kind_is_read_with_what_was_observed(tmp_path: Path) -> None:
    store = MemoryStore()
    await put(store, *observed())
    async with serving(settings(tmp_path), store) as (client, _):
        await client.apply(*applied())
        await client.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
        everything = await client.listed()
        there = set(await stored(store)) | {"endpoints/worker/w0"}
        assert {resource_of(key_of(each)) for each in everything} == there
        for kind in KINDS:
            alone = await client.listed(kind.name)
            assert alone == [each for each in everything if key_of(each).startswith(kind.prefix)]
            for each in alone:
                assert await client.get(f"{kind.name}/{each.metadata.name}") == each
        budget, slo = await client.get("Budget/acme"), await client.get("Slo/generate/*")
        assert (budget.budget.monthly_microusd, budget.spend.day_microusd) == (BUDGET.monthly_microusd, 7)
        assert (slo.slo.availability, slo.error_budget.objectives[0].consumed) == (SLO.availability, 0.5)
        assert not slo.error_budget.windows
        # What is shown beside a spec is not part of it: sent back, it changes nothing.
        sent = await client.apply(budget, slo)
        assert set(outcomes(sent.results).values()) == {"UNCHANGED"}


async def test_a_registry_that_drains_lets_its_watchers_go(tmp_path: Path) -> None:
    async with serving(settings(tmp_path), MemoryStore()) as (client, service):
        await client.apply(tenant())
        stream = client.Watch(pb.WatchRequest())
        assert (await stream.read()).resources
        draining = asyncio.create_task(service.drain())
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK
        draining.cancel()
        await asyncio.wait((draining,))


async def test_compaction_while_the_registry_is_away_is_told_whole_or_said(tmp_path: Path, etcd: EtcdServer) -> None:
    writer = EtcdStore([etcd.endpoint])
    async with serving(settings(tmp_path), EtcdStore([etcd.endpoint])) as (client, _):
        await client.apply(tenant("kept"), tenant("gone"))
        follower = Follower(client, "Tenant")
        for number in range(3):
            await follower.reach((await client.apply(tenant("before", display_name=str(number)))).revision)
            etcd.restart()
            await writer.txn(deletes=[keys.key("tenants", "gone")])
            last = await put(writer, tenant("new", display_name=str(number)))
            etcd.compact(last)
            try:
                await follower.reach(last)
            except WeirError as error:
                if error.reason is not Reason.REVISION_GONE:
                    raise
                follower = Follower(client, "Tenant")
                await follower.reach(last)
            # Never a part.
            assert follower.known == await listed(client, "Tenant")
            assert set(follower.known) == {"tenants/before", "tenants/kept", "tenants/new"}
    await writer.close()


async def _beyond(stream: Any, revision: int) -> None:
    while (await stream.read()).revision <= revision:
        pass


async def test_a_restored_store_is_another_history(tmp_path: Path, etcd: EtcdServer) -> None:
    store = EtcdStore([etcd.endpoint])
    async with serving(settings(tmp_path), store) as (client, _):
        await client.apply(tenant("kept", display_name="then"))
        etcd.snapshot(tmp_path / "backup")
        for number in range(5):
            await client.apply(tenant(f"lost{number}"), tenant("kept", display_name=str(number)))
        stream = client.Watch(pb.WatchRequest(kinds=["Tenant"]))
        reached = (await stream.read()).revision
        etcd.stop()
        etcd.restore(tmp_path / "backup")
        etcd.start()
        assert (await refused(_beyond(stream, reached))).reason is Reason.REVISION_GONE
        # Nor can anybody go on from there.
        again = client.Watch(pb.WatchRequest(kinds=["Tenant"], from_revision=reached + 1))
        assert (await refused(again.read())).reason is Reason.REVISION_GONE
        found = await client.listed("Tenant")
        assert [(each.metadata.name, each.tenant.display_name) for each in found] == [("kept", "then")]
        done = await client.apply(tenant("after"))
        follower = Follower(client, "Tenant")
        assert set(await follower.reach(done.revision)) == {"tenants/kept", "tenants/after"}
    await store.close()
