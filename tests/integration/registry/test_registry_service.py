"""The registry service as a real server: what its kinds ask for, keys, audit, and etcd going away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.registry.v1 import registry_pb2 as pb

from libs import apikeys
from libs.artifacts import make_key, sign
from libs.clock import SystemClock
from libs.errors import Reason, WeirError
from libs.mux import Codec, MuxServer
from libs.registry import EtcdStore, MemoryStore, Put, cache, keys
from libs.rpc import make_server
from libs.rpc.server import bind
from tests.support.etcd import EtcdServer
from tests.support.registry_service import (
    PEPPER,
    Client,
    alias,
    model,
    outcomes,
    put,
    refused,
    resource,
    serving,
    settings,
    snapshot_in,
    tenant,
)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with serving(settings(tmp_path), MemoryStore()) as (client, _):
        yield client


async def test_model_versions_are_immutable_and_content_addressed(client: Client) -> None:
    await client.apply(model(digest="forged"))
    made = await client.read("ModelVersion/weir-fast@1")
    assert len(made.digest) == 64
    assert made.HasField("created_at")
    again = await client.apply(model())
    assert outcomes(again.results) == {"ModelVersion/weir-fast@1": "UNCHANGED"}
    moved = await refused(client.apply(model(source="/elsewhere")))
    assert (moved.reason, "immutable" in moved.message) == (Reason.ALREADY_EXISTS, True)
    other = await refused(client.apply(model(context_length=2048)))
    assert (other.reason, "immutable" in other.message) == (Reason.ALREADY_EXISTS, True)
    bad = await refused(client.apply(model(version="2", tier="huge")))
    assert (bad.reason, bad.limit) == (Reason.INVALID_REQUEST, "models/weir-fast@2 spec.tier")
    assert await client.names("ModelVersion") == ["weir-fast@1"]


async def test_an_alias_follows_versions_and_revisions(client: Client) -> None:
    missing = await refused(client.apply(alias()))
    assert missing.limit == "aliases/weir-fast spec.targets[0].model_version"
    await client.apply(model())
    await client.apply(alias())
    light = pb.Alias(name="weir-fast", targets=[pb.AliasTarget(model_version="weir-fast@1", weight=90)])
    assert (await refused(client.apply(light))).limit == "aliases/weir-fast spec.targets"


async def test_a_workload_is_one_tenants(client: Client) -> None:
    workload = "spiffe://weir.internal/sa/demo-client"
    await client.apply(tenant("internal", workloads=[workload]))
    taken = await refused(client.apply(tenant("acme", workloads=[workload])))
    assert taken.limit == "tenants/acme spec.workloads[0]"
    # Handed over in one transaction it is nobody's twice.
    await client.apply(tenant("acme", workloads=[workload]), tenant("internal"))
    gone = pb.Limits(tenant="gone", model="*")
    assert (await refused(client.apply(gone))).limit == "limits/gone/* metadata.name"


async def test_plans_and_the_tenants_that_name_them(client: Client) -> None:
    await client.apply(model())
    ladder = [
        pb.DegradationStep(cap_output=pb.CapOutput(max_tokens=16, pressure=0.5)),
        pb.DegradationStep(cached_answer=pb.CachedAnswer(max_age=timedelta(seconds=30))),
        pb.DegradationStep(cpu_fallback=pb.CpuFallback(pools={"fast": "gone"})),
        pb.DegradationStep(default_answer=pb.DefaultAnswer(text="Busy.")),
    ]
    plan = pb.PlanPolicy(id="gold", weight=4, over_quota=pb.OVER_QUOTA_SERVE_IDLE, kv_share=0.5, ladder=ladder)
    bad = await refused(client.apply(plan))
    assert "spec.ladder[2].cpu_fallback.pools" in bad.limit
    plan.ladder[2].smaller_model.models["weir-fast@1"] = "weir-fast"
    assert "spec.ladder[2].smaller_model.models" in (await refused(client.apply(plan))).limit
    await client.apply(alias(), plan)
    assert (await refused(client.apply(tenant(plan_policy="silver")))).limit == "tenants/acme spec.plan_policy"
    await client.apply(tenant(plan_policy="gold"))


async def test_safety_policies_never_change(client: Client) -> None:
    rule = pb.SafetyRule(id="card", category="pii.card", pattern=r"\d{16}", action="block", stage="both")
    policy = pb.SafetyPolicy(id="default", version="1", rules=[rule])
    await client.apply(policy)
    assert outcomes((await client.apply(policy)).results) == {"SafetyPolicy/default@1": "UNCHANGED"}
    # Labels are for people: nothing that is filtered changed.
    await client.apply(resource(policy, labels={"a": "b"}))
    policy.rules[0].action = "flag"
    error = await refused(client.apply(policy))
    assert (error.reason, error.limit) == (Reason.ALREADY_EXISTS, "metadata.name")
    assert (await client.read("SafetyPolicy/default@1")).rules[0].action == "block"
    policy.version = "2"
    await client.apply(policy)
    policy.version, policy.rules[0].pattern = "3", "("
    assert (await refused(client.apply(policy))).limit == "safety/default@3 spec.rules[0].pattern"
    for missing, place in (
        (model("m", safety_policies=["default@1", "gone@1"]), "models/m@1 spec.safety_policies[1]"),
        (tenant("t", safety_policies=["default"]), "tenants/t spec.safety_policies[0]"),
        (pb.SafetyFloor(policies=["default@3"]), "safety-floor/mesh spec.policies[0]"),
    ):
        assert (await refused(client.apply(missing))).limit == place


async def test_signatures_are_checked_where_a_namespace_has_trusted_keys(client: Client) -> None:
    known, unknown = make_key(), make_key()
    trust = pb.TrustPolicy(namespace="team", keys=[known.trusted()], threshold=2)
    assert (await refused(client.apply(trust))).limit == "trust/team spec.threshold"
    trust.threshold = 1
    version = model(namespace="team")
    unsigned = model(namespace="team")
    # Also when keys and what they shall sign come together: in either order, what will be trusted counts.
    assert (await refused(client.apply(version, trust))).limit == "spec.signature"
    await client.apply(trust)
    for signature in ("", sign(unsigned, unknown)):
        version.signature = signature
        error = await refused(client.apply(version))
        assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "spec.signature")
    version.signature = sign(unsigned, known)
    await client.apply(version)
    # Signed anew, as in a rotation of keys; without a signature it keeps the one that it has.
    trust.keys.append(unknown.trusted())
    renewed = model(namespace="team", signature=sign(unsigned, unknown))
    await client.apply(renewed, trust)
    assert (await client.read("ModelVersion/weir-fast@1")).signature == renewed.signature != version.signature
    assert outcomes((await client.apply(unsigned)).results) == {"ModelVersion/weir-fast@1": "UNCHANGED"}
    # Elsewhere nobody's signature is needed, but no name of the namespace can be used there.
    await client.apply(model(name="weir-slow"))
    error = await refused(client.apply(model(version="2")))
    assert (error.limit, "belongs to namespace 'team'" in error.message) == ("models/weir-fast@2 metadata.name", True)


async def test_keys(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (client, _):
        await client.apply(tenant())
        request = pb.CreateKeyRequest(tenant="acme", scopes=["inference"], ttl=timedelta(seconds=60), note="n")
        made = await client.CreateKey(request)
        parsed = apikeys.parse(made.secret)
        assert parsed is not None
        name = f"ApiKey/{parsed.id}"
        assert made.key == await client.get(name)
        assert (made.key.metadata.name, made.key.key.hash) == (parsed.id, b"")
        assert made.key.key.expires_at.seconds - made.key.key.created_at.seconds == 60
        raw = await store.get(keys.key("keys", parsed.id))
        assert raw is not None
        # Nothing of the secret is stored, only what the pepper can check.
        assert made.secret.rsplit("_", 1)[1].encode() not in raw.value
        held = (await snapshot_in(store)).keys[parsed.id]
        assert apikeys.matches(parsed, held.hash, PEPPER.encode())
        assert held.hash not in (await client.newest()).SerializeToString()
        revoked = await client.RevokeKey(pb.RevokeKeyRequest(key_id=parsed.id))
        assert revoked.key.key.HasField("revoked_at")
        await client.apply(tenant("other"))
        # Again it says what it is, with the revision of its own.
        assert await client.RevokeKey(pb.RevokeKeyRequest(key_id=parsed.id)) == revoked
        assert (await refused(client.RevokeKey(pb.RevokeKeyRequest(key_id="gone")))).reason is Reason.NOT_FOUND
        for wrong, field in (
            ({"scopes": ["root"]}, "scopes[0]"),
            ({"scopes": []}, "scopes"),
            ({"tenant": "gone"}, "tenant"),
        ):
            bad = pb.CreateKeyRequest(**({"tenant": "acme", "scopes": ["inference"]} | wrong))
            error = await refused(client.CreateKey(bad))
            assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, field)
        # A key is made by CreateKey alone: whoever applied one would know its secret.
        error = await refused(client.apply(pb.ApiKey(id="mine", tenant="acme", hash=b"x" * 32)))
        assert "nobody applies those" in error.message
        tried = await client.CreateKey(
            pb.CreateKeyRequest(tenant="acme", scopes=["inference"], change=pb.ChangeOptions(dry_run=True))
        )
        assert not tried.secret
        assert len(await client.names("ApiKey")) == 1


async def test_pool_levels_are_listed_as_they_come_and_go(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (client, _):
        level = pb.PoolLevel(pool="fast", tenants=[pb.TenantLevel(tenant="acme", shed=0.5)])
        await put(store, level)
        # A change returns once the service has seen everything up to it.
        await client.apply(tenant("a"))
        assert await client.read("PoolLevel/fast") == level
        await store.txn(deletes=[keys.key_of(level)])
        await client.apply(tenant("b"))
        assert await client.names("PoolLevel") == []


@contextlib.asynccontextmanager
async def audit_server(port: int = 0) -> AsyncIterator[tuple[int, list[audit_pb2.Record]]]:
    """A small audit service that keeps records in memory."""
    records: list[audit_pb2.Record] = []

    def handle(call: audit_pb2.AuditCall, ctx: Any) -> audit_pb2.AuditReply:
        duplicate = any(record.id == call.append.record.id for record in records)
        if not duplicate:
            records.append(call.append.record)
        return audit_pb2.AuditReply(appended=audit_pb2.Appended(sequence=len(records), duplicate=duplicate))

    mux = MuxServer(
        codec=Codec.of(audit_pb2.SessionRequest, audit_pb2.SessionResponse),
        handler=handle,
        instance="audit-0",
        clock=SystemClock(),
    )

    class Servicer(audit_pb2_grpc.AuditServiceServicer):
        async def Session(self, request_iterator: Any, context: Any) -> None:  # noqa: N802 - the name on the wire
            await mux.serve(request_iterator, context)

    server = make_server()
    audit_pb2_grpc.add_AuditServiceServicer_to_server(Servicer(), server)
    bound = bind(server, f"127.0.0.1:{port}", tls=None)
    await server.start()
    try:
        yield bound, records
    finally:
        await server.stop(None)


async def test_every_change_is_audited_once_also_when_audit_was_away(tmp_path: Path) -> None:
    store = MemoryStore()
    async with audit_server() as (port, before):
        config = settings(tmp_path, audit_target=f"127.0.0.1:{port}")
        async with serving(config, store) as (client, service):
            changed = await client.apply(tenant())
            await client.apply(tenant())
            await client.apply(tenant("tried"), dry_run=True)
            await refused(client.apply(tenant("No")))
            await service.outbox.wait_empty()
            assert [record.admin.resource for record in before] == ["tenants/acme"]
            assert before[0].admin.action == "registry.Apply"
            assert before[0].admin.revision == changed.revision
            assert before[0].source == "registry/registry-0"
    # The audit log is away: changes are made, their records wait in the store and outlive the process.
    async with serving(config, store) as (client, service):
        later = await client.apply(*(tenant(f"t{number}") for number in range(4)))
        assert service.outbox.pending
    assert len((await store.get_prefix(keys.AUDIT_OUTBOX)).kvs) == 1
    async with audit_server(port) as (_, after), serving(config, store) as (_, service):
        await service.outbox.wait_empty()
        told = [(record.admin.resource, record.admin.revision) for record in after]
        assert told == [("tenants/t0 and 3 more", later.revision)]
    assert not (await store.get_prefix(keys.AUDIT_OUTBOX)).kvs


async def test_too_long_a_backlog_refuses_changes(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, max_audit_backlog=2), MemoryStore()) as (client, _):
        await client.apply(tenant("a"))
        await client.apply(tenant("b"))
        error = await refused(client.apply(tenant("c")))
        assert error.reason is Reason.DEPENDENCY_UNAVAILABLE
        assert error.retry_after
        # To ask what would be needs no room.
        await client.apply(tenant("c"), dry_run=True)


async def test_store_away_refuses_changes_and_serves_reads(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (client, _):
        await client.apply(tenant())
        store.set_available(False)
        assert (await refused(client.apply(tenant("globex")))).reason is Reason.DEPENDENCY_UNAVAILABLE
        assert (await refused(client.delete("Tenant/acme"))).reason is Reason.DEPENDENCY_UNAVAILABLE
        assert (await refused(client.newest())).reason is Reason.DEPENDENCY_UNAVAILABLE
        assert await client.names("Tenant") == ["acme"]
        assert (await client.read("Tenant/acme")).plan == pb.PLAN_PAID
        watch = client.Watch(pb.WatchRequest(kinds=["Tenant"]))
        assert [each.metadata.name for each in (await watch.read()).resources] == ["acme"]
        store.set_available(True)
        await client.apply(tenant("globex"))
        assert [each.metadata.name for each in (await watch.read()).resources] == ["globex"]


async def test_a_registry_that_starts_without_its_store_reads_from_its_cache(tmp_path: Path) -> None:
    store = MemoryStore()
    config = settings(tmp_path, state_dir=str(tmp_path))
    await put(store, tenant())
    cache.save(tmp_path / "registry.cache", await store.get_prefix(keys.EVERYTHING))
    store.set_available(False)
    async with serving(config, store) as (client, _):
        assert await client.names("Tenant") == ["acme"]
        watch = client.Watch(pb.WatchRequest(kinds=["Tenant"]))
        assert [each.metadata.name for each in (await watch.read()).resources] == ["acme"]
        store.set_available(True)
        await store.txn(deletes=[keys.key("tenants", "acme")])
        # It had been told of a state that may be an old one: it is told to begin anew, and not left with it.
        assert (await refused(watch.read())).reason is Reason.REVISION_GONE


async def test_unreadable_values_hide_nothing_and_can_be_replaced(tmp_path: Path) -> None:
    store = MemoryStore()
    await store.txn(puts=[Put(keys.key("tenants", "acme"), b"\xff")])
    async with serving(settings(tmp_path), store) as (client, _):
        assert (await refused(client.get("Tenant/acme"))).reason is Reason.INTERNAL
        await client.apply(tenant("other"))
        assert await client.names("Tenant") == ["other"]
        done = await client.apply(tenant())
        assert outcomes(done.results) == {"Tenant/acme": "CREATED"}
        assert (await client.read("Tenant/acme")).plan == pb.PLAN_PAID


async def test_replicas_race_without_losing_a_rule(tmp_path: Path, etcd: EtcdServer) -> None:
    """Two replicas, two tenants, one workload: whichever is first, the other is refused."""
    workload = "spiffe://weir.internal/sa/demo-client"
    stores = [EtcdStore([etcd.endpoint]) for _ in range(2)]
    async with (
        serving(settings(tmp_path, instance="registry-0"), stores[0]) as (one, _),
        serving(settings(tmp_path, instance="registry-1"), stores[1]) as (two, _),
    ):
        results = await asyncio.gather(
            *(
                replica.apply(tenant(f"t{number}", workloads=[workload]))
                for number, replica in enumerate([one, two] * 4)
            ),
            return_exceptions=True,
        )
        winners = [result for result in results if not isinstance(result, BaseException)]
        assert len(winners) == 1
        errors = [error for error in results if isinstance(error, WeirError)]
        assert {error.limit.partition(" ")[2] for error in errors} == {"spec.workloads[0]"}
        # What one deletes the other does not refer to: of each pair one comes through, and never both.
        for number in range(5):
            await one.apply(tenant(f"p{number}"))
            raced = await asyncio.gather(
                one.delete(f"Tenant/p{number}"),
                two.apply(pb.Limits(tenant=f"p{number}", model="*")),
                return_exceptions=True,
            )
            assert sum(isinstance(each, WeirError) for each in raced) == 1
        etcd.restart()
        await one.apply(tenant("after"))
        assert "after" in await one.names("Tenant")
    for store in stores:
        await store.close()
