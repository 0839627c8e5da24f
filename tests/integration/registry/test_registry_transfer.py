"""Export and import: equal byte for byte, damaged streams refused, large ones resumed; on a real etcd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.changes import MAX_WRITES
from libs.changes.exports import EXPORTED, ExportDigest
from libs.errors import Reason, WeirError
from libs.registry import (
    Compare,
    EtcdStore,
    MemoryStore,
    Put,
    RegistrySnapshot,
    RegistryView,
    Store,
    TxnResult,
    keys,
    snapshot_of,
)
from tests.support.etcd import EtcdServer
from tests.support.registry_service import Client, alias, model, refused, serving, settings, tenant

TENANTS = 2000


class Breaking(MemoryStore):
    """Answers nothing any more after some transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        if self.left == 0:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "broken off")
        self.left -= 1
        return await super().txn(compares=compares, puts=puts, deletes=deletes)


async def stored(store: Store) -> dict[str, bytes]:
    kvs = (await store.get_prefix(keys.ROOT)).kvs
    return {kv.key: kv.value for kv in kvs if kv.key.startswith(tuple(EXPORTED))}


async def export(client: Client, *, history: bool = False) -> list[pb.ExportResponse]:
    return [part async for part in client.Export(pb.ExportRequest(history=history))]


def values_of(parts: Sequence[pb.ExportResponse]) -> list[pb.ExportedValue]:
    return [value for part in parts for value in part.values]


def requests_of(parts: Sequence[pb.ExportResponse], **options: Any) -> list[pb.ImportRequest]:
    made = [pb.ImportRequest(values=part.values, digest=part.digest) for part in parts]
    last = pb.ImportRequest(**options)
    made[-1].MergeFrom(last)
    return made


def import_of(values: Sequence[tuple[str, bytes]], **options: Any) -> list[pb.ImportRequest]:
    digest = ExportDigest()
    for name, value in values:
        digest.add(name, value)
    made = [pb.ExportedValue(resource=name, value=value) for name, value in values]
    return [pb.ImportRequest(values=made), pb.ImportRequest(digest=digest.hex, **options)]


async def send(client: Client, requests: Sequence[pb.ImportRequest]) -> pb.ImportResponse:
    async def stream() -> AsyncIterator[pb.ImportRequest]:
        for request in requests:
            yield request

    answer: pb.ImportResponse = await client.Import(stream())
    return answer


async def fill(client: Client) -> None:
    """A little of everything."""
    rule = pb.SafetyRule(id="card", category="pii.card", pattern=r"\d{16}", action="block", stage="both")
    await client.SetSafetyPolicy(pb.SetSafetyPolicyRequest(policy=pb.SafetyPolicy(id="default", rules=[rule])))
    await client.SetPlanPolicy(pb.SetPlanPolicyRequest(plan=pb.PlanPolicy(id="gold", weight=3)))
    await client.SetTenant(tenant("acme", plan_policy="gold", display_name="Äcme"))
    await client.SetLimits(pb.SetLimitsRequest(limits=pb.Limits(tenant="acme", model="*", tokens_per_minute=7)))
    await client.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
    await client.CreateModelVersion(model())
    await client.CreateModelVersion(model(version="2"))
    await client.SetAlias(alias())
    await client.SetPrice(pb.SetPriceRequest(price=pb.Price(model="weir-fast@2", input_microusd_per_million=5)))
    await client.SetSlo(pb.SetSloRequest(slo=pb.Slo(route="generate", tier="*", availability=0.999)))
    await client.SetPin(pb.SetPinRequest(pin=pb.Pin(model_version="weir-fast@2", reason="kept")))
    # A price of something that is gone is no reason not to take a registry over.
    await client.DeletePin(pb.DeletePinRequest(model_version="weir-fast@2"))
    await client.DeleteModelVersion(pb.DeleteModelVersionRequest(model_version="weir-fast@2"))
    await client.CreateModelVersion(model(version="3"))
    await client.SetPin(pb.SetPinRequest(pin=pb.Pin(model_version="weir-fast@3", reason="kept")))
    binding = pb.RoleBinding(principal="spiffe://weir.internal/sa/rollout", roles=["viewer"])
    await client.SetRoleBinding(pb.SetRoleBindingRequest(binding=binding))
    switch = pb.RolloutSwitch(reason="checked")
    await client.SetRolloutSwitch(pb.SetRolloutSwitchRequest(switch=switch))


async def start(client: Client, store: Store) -> None:
    """A rollout under way."""
    worker = pb.Endpoint(service="worker", instance="w0", pool="fast")
    await store.txn(puts=[Put(keys.key_of(worker), keys.encode(worker))])
    await client.SetTenant(tenant("seen"))
    rollout = pb.Rollout(
        alias="weir-fast",
        arms=[pb.RolloutArm(name="canary", model_version="weir-fast@3")],
        steps=[pb.RolloutStep(weight=10)],
        shadow=pb.ShadowPlan(share=100),
        reason="better",
    )
    await client.StartRollout(pb.StartRolloutRequest(rollout=rollout))


async def test_an_import_equals_the_original_byte_for_byte(tmp_path: Path, etcd: EtcdServer) -> None:
    original, copy = EtcdStore([etcd.endpoint]), MemoryStore()
    async with serving(settings(tmp_path), original) as (client, _), serving(settings(tmp_path), copy) as (other, _):
        await fill(client)
        await start(client, original)
        parts = await export(client)
        assert {value.resource.split("/")[0] + "/" for value in values_of(parts)} == {
            prefix.removeprefix(keys.ROOT) for prefix in EXPORTED if prefix != keys.BUDGETS and prefix != keys.TRUST
        }
        assert len({part.revision for part in parts}) == 1
        assert b'"hash"' in next(value.value for value in values_of(parts) if value.resource.startswith("keys/"))

        tried = await send(other, requests_of(parts, change=pb.ChangeOptions(dry_run=True)))
        assert await stored(copy) == {}
        done = await send(other, requests_of(parts, change=pb.ChangeOptions(reason="moved")))
        assert (done.imported, done.deleted) == (tried.imported, tried.deleted) == (len(values_of(parts)), 0)
        assert await stored(copy) == await stored(original)
        again = await export(other)
        assert (again[-1].digest, values_of(again)) == (parts[-1].digest, values_of(parts))
        entry = (await other.ListHistory(pb.ListHistoryRequest())).entries[0]
        assert (entry.action, entry.reason, entry.revision) == ("registry.Import", "moved", done.revision)
        assert not any('"hash"' in change.after for change in entry.changes)
        # All of it is one revision: readers never saw a part.
        assert {kv.mod_revision for kv in (await copy.get_prefix(keys.ROOT)).kvs if kv.key in await stored(copy)} == {
            done.revision
        }
        same = await send(other, requests_of(parts))
        assert same.revision == done.revision
    await original.close()


async def test_a_configuration_is_only_replaced_when_that_is_said(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (client, _):
        await fill(client)
        parts, before = await export(client), await stored(store)
        await client.SetTenant(tenant("globex"))
        await client.SetLimits(pb.SetLimitsRequest(limits=pb.Limits(tenant="acme", model="*", revision=-1)))
        error = await refused(send(client, requests_of(parts)))
        assert (error.reason, error.limit) == (Reason.CONFLICT, "replace")
        tried = await send(client, requests_of(parts, replace=True, change=pb.ChangeOptions(dry_run=True)))
        done = await send(client, requests_of(parts, replace=True))
        assert tried.deleted == done.deleted == 1
        assert await stored(store) == before
        entry = (await client.ListHistory(pb.ListHistoryRequest(limit=1))).entries[0]
        assert {change.resource for change in entry.changes} == {"limits/acme/*", "tenants/globex"}


async def test_the_history_comes_along_for_reading(tmp_path: Path) -> None:
    async with serving(settings(tmp_path), MemoryStore()) as (client, _):
        await client.SetTenant(tenant("acme"))
        await client.SetTenant(tenant("globex"))
        parts = await export(client, history=True)
        names = [value.resource for value in values_of(parts)]
        assert names == sorted(names)
        told = [json.loads(value.value) for value in values_of(parts) if value.resource.startswith("history/")]
        assert [entry["changes"][0]["resource"] for entry in told] == ["tenants/acme", "tenants/globex"]
    other = MemoryStore()
    async with serving(settings(tmp_path), other) as (client, _):
        # Its revisions were the other store's; here it would be wrong.
        assert (await send(client, requests_of(parts))).imported == 2
        assert len((await other.get_prefix(keys.HISTORY)).kvs) == 1


def encoded(message: Any) -> tuple[str, bytes]:
    return keys.key_of(message).removeprefix(keys.ROOT), keys.encode(message)


ACME = pb.Tenant(id="acme", plan=pb.PLAN_PAID)
GLOBEX = pb.Tenant(id="globex", plan=pb.PLAN_PAID)
ALIAS = pb.Alias(name="a", targets=[pb.AliasTarget(model_version="a@1", weight=100)])


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ([encoded(GLOBEX), encoded(ACME)], "tenants/acme"),
        ([encoded(ACME), encoded(ACME)], "tenants/acme"),
        ([("tenants/acme", b"{")], "tenants/acme"),
        ([("tenants/acme", b"\xff")], "tenants/acme"),
        ([("tenants/acme", encoded(GLOBEX)[1])], "tenants/acme"),
        ([("endpoints/worker/w0", b"{}")], "endpoints/worker/w0"),
        ([("fence", b"x")], "fence"),
        ([encoded(ALIAS)], "aliases/a"),
        ([encoded(pb.ApiKey(id="k", tenant="gone"))], "keys/k"),
    ],
)
async def test_a_snapshot_that_does_not_hold_is_refused(
    tmp_path: Path, values: list[tuple[str, bytes]], field: str
) -> None:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (client, _):
        error = await refused(send(client, import_of(values)))
        assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, field)
        assert await stored(store) == {}


async def test_half_a_snapshot_is_none(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (client, _):
        whole = import_of([encoded(ACME), encoded(GLOBEX)])
        half = import_of([encoded(ACME)])
        for requests in (whole[:1], [], [half[0], whole[1]], [whole[1]], [*whole, half[0]]):
            assert (await refused(send(client, requests))).limit == "digest"
        assert await stored(store) == {}
        assert (await send(client, whole)).imported == 2


def many(count: int) -> list[tuple[str, bytes]]:
    """Tenants, each with a key and limits, and models with aliases that give them."""
    messages: list[Any] = []
    for number in range(count):
        name = f"t{number:04}"
        messages += [
            pb.Tenant(id=name, plan=pb.PLAN_PAID),
            pb.ApiKey(id=f"k{number:04}", tenant=name, hash=b"h" * 32, scopes=["inference"]),
            pb.Limits(tenant=name, model="*", requests_per_minute=60),
        ]
    for number in range(count // 10):
        version = model(name=f"m{number:03}").model_version
        target = pb.AliasTarget(model_version=f"m{number:03}@1", weight=100)
        messages += [version, pb.Alias(name=f"m{number:03}", targets=[target])]
    return sorted(encoded(message) for message in messages)


def dangling(snapshot: RegistrySnapshot) -> list[str]:
    """What names something that is not there."""
    targets = [target.model_version for each in snapshot.aliases.values() for target in each.targets]
    owners = [key.tenant for key in snapshot.keys.values()] + [tenant_id for tenant_id, _ in snapshot.limits]
    return [name for name in targets if name not in snapshot.model_versions] + [
        name for name in owners if name not in snapshot.tenants
    ]


async def test_a_broken_import_keeps_others_out_and_is_resumed(tmp_path: Path) -> None:
    store = Breaking()
    # What a reader of the mesh sees at each revision.
    view = RegistryView(store)
    reading = asyncio.create_task(view.run())
    seen: list[list[str]] = []
    view.on_change(lambda snapshot: seen.append(dangling(snapshot)))
    async with serving(settings(tmp_path), store) as (client, _):
        values = many(100)
        assert len(values) > 2 * MAX_WRITES
        store.left = 2
        assert (await refused(send(client, import_of(values)))).reason is Reason.DEPENDENCY_UNAVAILABLE
        store.left = -1
        half = len(await stored(store))
        assert 0 < half < len(values)
        error = await refused(client.SetTenant(tenant("intruder")))
        assert (error.reason, error.limit) == (Reason.CONFLICT, "import")
        other = import_of([encoded(ACME)])
        assert (await refused(send(client, other))).limit == "import"
        assert len((await client.ListTenants(pb.ListTenantsRequest())).tenants) > 0

        done = await send(client, import_of(values))
        assert (done.imported, done.deleted) == (len(values), 0)
        assert await stored(store) == {keys.ROOT + name: value for name, value in values}
        assert await store.get(keys.IMPORT) is None

        # Broken again, and given up for another snapshot.
        store.left = 1
        await refused(send(client, import_of(many(50), replace=True)))
        store.left = -1
        assert (await send(client, import_of([encoded(ACME)], replace=True))).imported == 1
        assert await stored(store) == {keys.tenant_key("acme"): encoded(ACME)[1]}
        last = (await client.SetTenant(tenant("welcome"))).tenant.revision
        await view.wait_until(lambda snapshot: snapshot.revision >= last)
    reading.cancel()
    # Whatever a reader saw on the way, nothing named what was not there.
    assert len(seen) > 5
    assert [each for each in seen if each] == []


async def test_an_import_that_another_takes_over_ends(tmp_path: Path, etcd: EtcdServer) -> None:
    stores = [EtcdStore([etcd.endpoint]) for _ in range(2)]
    async with (
        serving(settings(tmp_path, instance="registry-0"), stores[0]) as (one, _),
        serving(settings(tmp_path, instance="registry-1"), stores[1]) as (two, _),
    ):
        results = await asyncio.gather(
            send(one, import_of(many(300), replace=True)),
            send(two, import_of(many(200), replace=True)),
            return_exceptions=True,
        )
        won = [number for number, result in enumerate(results) if not isinstance(result, BaseException)]
        lost = [result for result in results if isinstance(result, WeirError)]
        assert all((error.reason, error.limit) == (Reason.CONFLICT, "import") for error in lost)
        assert won
        assert len(won) + len(lost) == 2
        now = await stored(stores[0])
        assert now in [{keys.ROOT + name: value for name, value in many((300, 200)[number])} for number in won]
        assert await stores[0].get(keys.IMPORT) is None
    for store in stores:
        await store.close()


async def test_two_thousand_tenants(tmp_path: Path, etcd: EtcdServer) -> None:
    store = EtcdStore([etcd.endpoint])
    async with serving(settings(tmp_path), store) as (client, _):
        values = many(TENANTS)
        done = await send(client, import_of(values, change=pb.ChangeOptions(reason="drill")))
        assert done.imported == len(values) == 6400
        assert await stored(store) == {keys.ROOT + name: value for name, value in values}
        parts = await export(client)
        assert [(value.resource, value.value) for value in values_of(parts)] == values
        assert len(parts) > 2
        listing = await store.get_prefix(keys.ROOT)
        assert len(snapshot_of(listing.kvs, listing.revision).tenants) == TENANTS
        entries = (await client.ListHistory(pb.ListHistoryRequest(limit=1000))).entries
        assert len(entries) == -(-(len(values) - MAX_WRITES) // (MAX_WRITES - 1)) + 1
    await store.close()
