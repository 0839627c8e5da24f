"""History of every change, pages, trimming, differences between revisions; on a real etcd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.operators import CHANGES
from libs.changes import recorded
from libs.errors import Reason, WeirError
from libs.registry import EtcdStore, MemoryStore, Put, Store, keys
from libs.resources.codec import decode
from libs.resources.forms import from_plain
from services.registry.history import History
from tests.support.etcd import EtcdServer
from tests.support.registry_service import (
    Client,
    alias,
    apply_of,
    model,
    named,
    put,
    refused,
    serving,
    settings,
    stored,
    tenant,
)
from tests.support.world import SLO, canary


@pytest.fixture
async def etcd_store(etcd: EtcdServer) -> AsyncIterator[EtcdStore]:
    store = EtcdStore([etcd.endpoint])
    yield store
    await store.close()


@pytest.fixture
async def client(tmp_path: Path, etcd_store: EtcdStore) -> AsyncIterator[Client]:
    async with serving(settings(tmp_path), etcd_store) as (client, _):
        yield client


def limits(requests: int, tenant_id: str = "acme") -> pb.Limits:
    return pb.Limits(tenant=tenant_id, model="*", requests_per_minute=requests)


Calls = dict[str, Callable[[bool], Awaitable[Any]]]
"""By a name of its own, "Delete pin": calls it, trying or for good."""


async def every_change(client: Client, store: Store) -> Calls:
    """One call for each RPC that changes something, each valid once the ones before were carried out."""
    worker = pb.Endpoint(service="worker", instance="w0", pool="fast", model_versions=["weir-fast@1", "weir-fast@2"])
    await put(store, worker)
    await client.apply(model(), model(version="2"), SLO)
    key: list[str] = []

    def options(dry_run: bool) -> pb.ChangeOptions:
        return pb.ChangeOptions(reason="why", dry_run=dry_run)

    async def create_key(dry_run: bool) -> None:
        request = pb.CreateKeyRequest(tenant="acme", scopes=["inference"], change=options(dry_run))
        key[:] = [(await client.CreateKey(request)).key.metadata.name]

    def steer(how: pb.Steering) -> Callable[[bool], Awaitable[Any]]:
        return lambda dry: client.SteerRollout(
            pb.SteerRolloutRequest(alias="weir-fast", steering=how, change=options(dry))
        )

    pin = pb.Pin(model_version="weir-fast@2", reason="kept")
    return {
        "Apply": lambda dry: client.Apply(apply_of(tenant(), limits(3), alias(), pin, reason="why", dry_run=dry)),
        "Apply rollout": lambda dry: client.Apply(
            apply_of(canary(shadow=pb.ShadowPlan(share=5)), reason="why", dry_run=dry)
        ),
        "CreateKey": create_key,
        "RevokeKey": lambda dry: client.RevokeKey(pb.RevokeKeyRequest(key_id=key[0], change=options(dry))),
        "SteerRollout pause": steer(pb.STEERING_PAUSE),
        "SteerRollout abort": steer(pb.STEERING_ABORT),
        "SteerRollout restart": steer(pb.STEERING_RESTART),
        "Delete": lambda dry: client.Delete(
            pb.DeleteRequest(resources=[named("Pin/weir-fast@2"), named("Limits/acme/*")], change=options(dry))
        ),
    }


async def test_every_change_is_in_the_history_with_before_and_after(client: Client, etcd_store: EtcdStore) -> None:
    calls = await every_change(client, etcd_store)
    assert {name.partition(" ")[0] for name in calls} == CHANGES
    start = (await etcd_store.get_prefix(keys.HISTORY)).revision
    first = await stored(etcd_store)
    for name, call in calls.items():
        before = await stored(etcd_store)
        await call(False)
        after = await stored(etcd_store)
        entry = await client.newest()
        rpc = name.partition(" ")[0]
        assert (entry.action, entry.actor, entry.reason) == (f"registry.{rpc}", "insecure", "why")
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        assert {change.resource for change in entry.changes} == changed, name
        for change in entry.changes:
            for told, real in ((change.before, before), (change.after, after)):
                value = real.get(change.resource)
                assert told == (recorded(decode(value, 0)) if value is not None else ""), name
                # It can be read back, and nothing in it is secret.
                assert not told or from_plain(json.loads(told)).metadata.name
                assert '"hash"' not in told
    entries = (await client.History(pb.HistoryRequest(limit=1000))).entries
    assert [entry.revision for entry in entries] == sorted((entry.revision for entry in entries), reverse=True)
    records = (await etcd_store.get_prefix(keys.AUDIT_OUTBOX)).kvs
    assert {kv.key.removeprefix(keys.AUDIT_OUTBOX) for kv in records} == {entry.id for entry in entries}
    whole = await client.Diff(pb.DiffRequest(from_revision=start))
    last = await stored(etcd_store)
    differing = {key for key in first.keys() | last.keys() if first.get(key) != last.get(key)}
    assert {change.resource for change in whole.changes} == differing


async def test_a_dry_run_of_any_change_writes_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (client, _):
        for name, call in (await every_change(client, store)).items():
            before = (store.revision, await stored(store))
            if name != "RevokeKey":
                await call(True)
            assert (store.revision, await stored(store)) == before, name
            await call(False)
            assert store.revision > before[0], name


async def test_history_by_resource_and_page(client: Client) -> None:
    await client.apply(tenant("acme"))
    await client.apply(tenant("acme-2"))
    for number in range(1, 6):
        await client.apply(limits(number), reason=f"number {number}")

    async def reasons(**fields: Any) -> list[str]:
        return [entry.reason for entry in (await client.History(pb.HistoryRequest(**fields))).entries]

    assert await reasons(kind="Limits", name="acme/*") == [f"number {number}" for number in (5, 4, 3, 2, 1)]
    assert await reasons(kind="Limits", limit=2) == ["number 5", "number 4"]
    page = (await client.History(pb.HistoryRequest(kind="Limits", name="acme", limit=2))).entries
    before = page[-1].revision
    assert await reasons(kind="Limits", name="acme", limit=2, before_revision=before) == ["number 3", "number 2"]
    assert len(await reasons(kind="Tenant", name="acme")) == 1
    assert await reasons(kind="Tenant", name="acm") == []
    assert len(await reasons(limit=1000)) == 7
    assert (await refused(reasons(kind="Tennant"))).reason is Reason.INVALID_REQUEST


async def test_differences_forth_and_back(client: Client) -> None:
    await client.apply(tenant("acme"))
    one = (await client.apply(limits(1))).revision
    await client.apply(limits(2))
    back = (await client.apply(limits(1))).revision
    two = (await client.apply(tenant("globex"))).revision

    async def diff(start: int, end: int = 0, **where: str) -> list[tuple[str, bool, bool]]:
        answer = await client.Diff(pb.DiffRequest(from_revision=start, to_revision=end, **where))
        assert answer.to_revision == (end or answer.to_revision) > 0
        return [(change.resource, bool(change.before), bool(change.after)) for change in answer.changes]

    # What came back to what it was is no difference.
    assert await diff(one, back) == []
    assert await diff(one) == [("tenants/globex", False, True)]
    assert await diff(two, one) == [("tenants/globex", True, False)]
    assert await diff(two, two) == []
    assert await diff(one, kind="Limits") == []
    assert await diff(one, two, kind="Tenant", name="globex") == [("tenants/globex", False, True)]
    assert (await refused(diff(1))).reason is Reason.NOT_FOUND
    assert (await refused(diff(two + 1000))).reason is Reason.INVALID_REQUEST
    assert (await refused(diff(-1))).reason is Reason.INVALID_REQUEST


async def test_replicas_that_race_leave_one_history(tmp_path: Path, etcd: EtcdServer) -> None:
    stores = [EtcdStore([etcd.endpoint]) for _ in range(2)]
    async with (
        serving(settings(tmp_path, instance="registry-0"), stores[0]) as (one, _),
        serving(settings(tmp_path, instance="registry-1"), stores[1]) as (two, _),
    ):
        await one.apply(tenant("acme"))
        then = (await one.apply(limits(1))).revision
        calls = [replica.apply(tenant(f"t{number}"), limits(number)) for number, replica in enumerate([one, two] * 4)]
        why = pb.ChangeOptions(reason="back")
        back = [replica.Rollback(pb.RollbackRequest(to_revision=then, change=why)) for replica in (one, two)]
        results = await asyncio.gather(*calls, *back, return_exceptions=True)
        assert [error for error in results if isinstance(error, BaseException)] == []
        # Replayed from nothing, the history gives what is there.
        state: dict[str, str] = {}
        entries = (await one.History(pb.HistoryRequest(limit=1000))).entries
        for entry in reversed(entries):
            for change in entry.changes:
                assert state.get(change.resource, "") == change.before
                state[change.resource] = change.after
        present = {name: recorded(decode(value, 0)) for name, value in (await stored(stores[0])).items()}
        assert {name: value for name, value in state.items() if value} == present
    for store in stores:
        await store.close()


def encoded(number: int) -> bytes:
    change = pb.ResourceChange(resource="tenants/a", after=str(number))
    return pb.HistoryEntry(id=str(number), changes=[change]).SerializeToString()


async def test_the_history_is_bounded(etcd_store: EtcdStore) -> None:
    store = etcd_store
    history = History(store=store, limit=150, interval=60.0, rng=Random(1))
    assert await history.trim() == 0
    revisions = []
    for number in range(420):
        result = await store.txn(puts=[Put(f"{keys.HISTORY}{number:020d}-{number}", encoded(number))])
        revisions.append(result.revision)
    assert await history.trim() == 270
    kept = await history.entries(limit=1000)
    assert [entry.revision for entry in kept] == revisions[:-151:-1]
    found, _ = await history.differences(revisions[-150], 0)
    assert [(each.resource, each.after) for each in found] == [("tenants/a", "419")]
    with pytest.raises(WeirError) as caught:
        await history.differences(revisions[-151], 0)
    assert caught.value.reason is Reason.NOT_FOUND
    assert str(revisions[-150]) in caught.value.message


async def test_an_unreadable_entry_is_shown_and_stops_differences(etcd_store: EtcdStore) -> None:
    first = await etcd_store.txn(puts=[Put(f"{keys.HISTORY}1-a", b"")])
    await etcd_store.txn(puts=[Put(f"{keys.HISTORY}2-b", b"\xff")])
    history = History(store=etcd_store, limit=10, interval=60.0, rng=Random(1))
    assert [entry.action for entry in await history.entries()] == ["unreadable", ""]
    with pytest.raises(WeirError) as caught:
        await history.differences(first.revision, 0)
    assert caught.value.reason is Reason.INTERNAL
