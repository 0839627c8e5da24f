"""The registry service as a real server: changes, conflicts, access, audit, and etcd going away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import duration_pb2
from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.registry.v1 import registry_pb2 as pb

from libs import apikeys
from libs.clock import SystemClock
from libs.config import TlsFiles
from libs.errors import Reason, WeirError
from libs.mux import Codec, MuxServer
from libs.pki import issue
from libs.registry import EtcdStore, MemoryStore, Put, RegistryView, keys
from libs.rpc import make_channel, make_server
from libs.rpc.server import bind
from libs.service.process import serve
from services.registry.app import build
from tests.support.etcd import EtcdServer
from tests.support.registry_service import PEPPER, Client, alias, model, refused, serving, settings, tenant


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with serving(settings(tmp_path), MemoryStore()) as (client, _):
        yield client


async def test_model_versions_are_immutable_and_content_addressed(client: Client) -> None:
    made = await client.CreateModelVersion(model())
    assert len(made.model_version.digest) == 64
    assert made.model_version.HasField("created_at")
    assert made.revision > 0
    again = await client.CreateModelVersion(model())
    assert again.model_version == made.model_version
    moved = await client.CreateModelVersion(model(source="/elsewhere"))
    assert moved.model_version.digest == made.model_version.digest
    assert moved.model_version.source == "/elsewhere"
    other = await refused(client.CreateModelVersion(model(context_length=2048)))
    assert other.reason is Reason.ALREADY_EXISTS
    bad = await refused(client.CreateModelVersion(model(version="2", tier="huge")))
    assert (bad.reason, bad.limit) == (Reason.INVALID_REQUEST, "model_version.tier")
    listed = await client.ListModels(pb.ListModelsRequest())
    assert [item.version for item in listed.model_versions] == ["1"]


async def test_alias_follows_versions_and_revisions(client: Client) -> None:
    missing = await refused(client.SetAlias(alias()))
    assert (missing.reason, missing.limit) == (Reason.INVALID_REQUEST, "alias.targets[0].model_version")
    await client.CreateModelVersion(model())
    assert (await refused(client.SetAlias(alias(weight=90)))).limit == "alias.targets"
    created = (await client.SetAlias(alias(revision=0))).alias
    assert created.revision > 0
    assert (await refused(client.SetAlias(alias(revision=0)))).reason is Reason.CONFLICT
    same = (await client.SetAlias(alias(revision=created.revision))).alias
    assert same == created
    stale = pb.SetAliasRequest(alias=created)
    stale.alias.targets[0].arm = "new"
    changed = (await client.SetAlias(stale)).alias
    assert changed.revision > created.revision
    assert (await refused(client.SetAlias(stale))).reason is Reason.CONFLICT
    assert (await client.ListModels(pb.ListModelsRequest())).aliases[0] == changed


async def test_tenants_and_limits(client: Client) -> None:
    workload = "spiffe://weir.internal/sa/demo-client"
    await client.SetTenant(tenant("internal", workloads=[workload]))
    taken = await refused(client.SetTenant(tenant("acme", workloads=[workload])))
    assert (taken.reason, taken.limit) == (Reason.INVALID_REQUEST, "tenant.workloads[0]")
    await client.SetTenant(tenant("acme"))
    assert [item.id for item in (await client.ListTenants(pb.ListTenantsRequest())).tenants] == ["acme", "internal"]
    limits = pb.Limits(tenant="acme", model="*", requests_per_minute=3, revision=-1)
    stored = (await client.SetLimits(pb.SetLimitsRequest(limits=limits))).limits
    assert stored.requests_per_minute == 3
    gone = pb.Limits(tenant="gone", model="*", revision=-1)
    assert (await refused(client.SetLimits(pb.SetLimitsRequest(limits=gone)))).limit == "limits.tenant"
    assert list((await client.ListLimits(pb.ListLimitsRequest(tenant="acme"))).limits) == [stored]
    assert not (await client.ListLimits(pb.ListLimitsRequest(tenant="other"))).limits


async def test_plans_and_the_tenants_that_name_them(client: Client) -> None:
    await client.CreateModelVersion(model())
    ladder = [
        pb.DegradationStep(cap_output=pb.CapOutput(max_tokens=16, pressure=0.5)),
        pb.DegradationStep(cached_answer=pb.CachedAnswer(max_age=duration_pb2.Duration(seconds=30))),
        pb.DegradationStep(cpu_fallback=pb.CpuFallback(pools={"fast": "gone"})),
        pb.DegradationStep(default_answer=pb.DefaultAnswer(text="Busy.")),
    ]
    plan = pb.PlanPolicy(id="gold", weight=4, over_quota=pb.OVER_QUOTA_SERVE_IDLE, kv_share=0.5, ladder=ladder)
    bad = await refused(client.SetPlanPolicy(pb.SetPlanPolicyRequest(plan=plan)))
    assert (bad.reason, bad.limit) == (Reason.INVALID_REQUEST, "plan.ladder[2].cpu_fallback.pools[fast]")
    plan.ladder[2].smaller_model.models["weir-fast@1"] = "weir-fast"
    bad = await refused(client.SetPlanPolicy(pb.SetPlanPolicyRequest(plan=plan)))
    assert bad.limit == "plan.ladder[2].smaller_model.models[weir-fast@1]"
    await client.SetAlias(alias())
    stored = (await client.SetPlanPolicy(pb.SetPlanPolicyRequest(plan=plan))).plan
    assert stored.revision > 0
    assert (await refused(client.SetPlanPolicy(pb.SetPlanPolicyRequest(plan=plan)))).reason is Reason.CONFLICT
    assert (await client.SetPlanPolicy(pb.SetPlanPolicyRequest(plan=stored))).plan == stored
    assert list((await client.ListPlanPolicies(pb.ListPlanPoliciesRequest())).plans) == [stored]
    assert (await refused(client.SetTenant(tenant("acme", plan_policy="silver")))).limit == "tenant.plan_policy"
    assert (await client.SetTenant(tenant("acme", plan_policy="gold"))).tenant.plan_policy == "gold"


async def test_objectives_prices_and_spend(client: Client) -> None:
    await client.CreateModelVersion(model())
    slo = pb.Slo(route="generate", tier="*", ttft_p95=duration_pb2.Duration(nanos=500_000_000), availability=0.999)
    stored = (await client.SetSlo(pb.SetSloRequest(slo=slo))).slo
    other = (await client.SetSlo(pb.SetSloRequest(slo=pb.Slo(route="generate", tier="fast")))).slo
    assert list((await client.ListSlos(pb.ListSlosRequest())).slos) == [stored, other]
    assert (await refused(client.SetSlo(pb.SetSloRequest(slo=slo)))).reason is Reason.CONFLICT
    assert (await refused(client.SetSlo(pb.SetSloRequest(slo=pb.Slo(route="chat"))))).limit == "slo.route"

    price = pb.Price(model="weir-fast@1", input_microusd_per_million=5, output_microusd_per_million=2**40, revision=-1)
    assert (
        await refused(client.SetPrice(pb.SetPriceRequest(price=price)))
    ).limit == "price.output_microusd_per_million"
    price.output_microusd_per_million = 15
    priced = (await client.SetPrice(pb.SetPriceRequest(price=price))).price
    assert list((await client.ListPrices(pb.ListPricesRequest())).prices) == [priced]
    gone = pb.SetPriceRequest(price=pb.Price(model="gone"))
    assert (await refused(client.SetPrice(gone))).limit == "price.model"

    await client.SetTenant(tenant("acme"))
    limits = pb.Limits(tenant="acme", model="*", spend_microusd=10**6, spend_window=duration_pb2.Duration(seconds=3600))
    assert (await client.SetLimits(pb.SetLimitsRequest(limits=limits))).limits.spend_window.seconds == 3600
    limits.spend_window.seconds = 0
    assert (await refused(client.SetLimits(pb.SetLimitsRequest(limits=limits)))).limit == "limits.spend_window"


async def test_pool_levels_are_listed_as_they_come_and_go(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (client, _):

        async def listed() -> list[pb.PoolLevel]:
            # A change returns once the service has seen everything up to it.
            await client.SetTenant(tenant(f"t{store.revision}"))
            return list((await client.ListPoolLevels(pb.ListPoolLevelsRequest())).levels)

        level = pb.PoolLevel(pool="fast", tenants=[pb.TenantLevel(tenant="acme", shed=0.5)])
        await store.txn(puts=[Put(keys.level_key("fast"), keys.encode(level))])
        assert await listed() == [level]
        await store.txn(deletes=[keys.level_key("fast")])
        assert await listed() == []


async def test_keys(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serving(settings(tmp_path), store) as (client, _):
        await client.SetTenant(tenant("acme"))
        made = await client.CreateKey(
            pb.CreateKeyRequest(tenant="acme", scopes=["inference"], ttl=duration_pb2.Duration(seconds=60), note="n")
        )
        parsed = apikeys.parse(made.secret)
        assert parsed is not None
        assert parsed.id == made.key.id
        assert not made.key.hash
        assert made.key.expires_at.seconds - made.key.created_at.seconds == 60
        raw = await store.get(keys.api_key_key(parsed.id))
        assert raw is not None
        # Nothing of the secret is stored, only what the pepper can check.
        assert made.secret.rsplit("_", 1)[1].encode() not in raw.value
        view = RegistryView(store)
        following = asyncio.create_task(view.run())
        await view.wait_ready()
        assert apikeys.matches(parsed, view.snapshot.keys[parsed.id].hash, PEPPER.encode())
        following.cancel()
        listed = (await client.ListKeys(pb.ListKeysRequest(tenant="acme"))).keys
        assert [key.id for key in listed] == [parsed.id]
        assert not any(key.hash for key in listed)
        revoked = (await client.RevokeKey(pb.RevokeKeyRequest(key_id=parsed.id))).key
        assert revoked.HasField("revoked_at")
        assert (await client.RevokeKey(pb.RevokeKeyRequest(key_id=parsed.id))).key == revoked
        assert (await refused(client.RevokeKey(pb.RevokeKeyRequest(key_id="gone")))).reason is Reason.NOT_FOUND
        bad = await refused(client.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["root"])))
        assert (bad.reason, bad.limit) == (Reason.INVALID_REQUEST, "scopes[0]")


async def test_safety_policies_count_their_versions(client: Client) -> None:
    rule = pb.SafetyRule(id="card", category="pii.card", pattern=r"\d{16}", action="block", stage="both")
    policy = pb.SafetyPolicy(id="default", rules=[rule], revision=-1)
    first = (await client.SetSafetyPolicy(pb.SetSafetyPolicyRequest(policy=policy))).policy
    assert first.version == 1
    assert (await client.SetSafetyPolicy(pb.SetSafetyPolicyRequest(policy=policy))).policy == first
    policy.rules[0].action = "flag"
    assert (await client.SetSafetyPolicy(pb.SetSafetyPolicyRequest(policy=policy))).policy.version == 2
    policy.rules[0].pattern = "("
    bad = await refused(client.SetSafetyPolicy(pb.SetSafetyPolicyRequest(policy=policy)))
    assert bad.limit == "policy.rules[0].pattern"
    missing = pb.ModelVersion(name="m", version="1", safety_policy="gone")
    assert (await refused(client.CreateModelVersion(pb.CreateModelVersionRequest(model_version=missing)))).limit


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
            changed = (await client.SetTenant(tenant("acme"))).tenant
            await client.SetTenant(tenant("acme"))
            await refused(client.SetTenant(tenant("No")))
            await service.outbox.wait_empty()
            assert [record.admin.resource for record in before] == ["tenants/acme"]
            assert before[0].admin.action == "registry.SetTenant"
            assert before[0].admin.revision == changed.revision
            assert before[0].source == "registry/registry-0"
    # The audit log is away: changes are made, their records wait in the store and outlive the process.
    async with serving(config, store) as (client, service):
        later = (await client.SetTenant(tenant("globex"))).tenant
        assert service.outbox.pending
    assert len((await store.get_prefix(keys.AUDIT_OUTBOX)).kvs) == 1
    async with audit_server(port) as (_, after), serving(config, store) as (_, service):
        await service.outbox.wait_empty()
        assert [(record.admin.resource, record.admin.revision) for record in after] == [
            ("tenants/globex", later.revision)
        ]
    assert not (await store.get_prefix(keys.AUDIT_OUTBOX)).kvs


async def test_too_long_a_backlog_refuses_changes(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, max_audit_backlog=2), MemoryStore()) as (client, _):
        await client.SetTenant(tenant("a"))
        await client.SetTenant(tenant("b"))
        error = await refused(client.SetTenant(tenant("c")))
        assert error.reason is Reason.DEPENDENCY_UNAVAILABLE
        assert error.retry_after


async def test_store_away_refuses_changes_and_serves_reads(tmp_path: Path) -> None:
    store = MemoryStore()
    config = settings(tmp_path)
    async with serving(config, store) as (client, _):
        await client.SetTenant(tenant("acme"))
        store.set_available(False)
        assert (await refused(client.SetTenant(tenant("globex")))).reason is Reason.DEPENDENCY_UNAVAILABLE
        assert len((await client.ListTenants(pb.ListTenantsRequest())).tenants) == 1
        store.set_available(True)
        await client.SetTenant(tenant("globex"))


async def test_access(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    names = ("registry", "cli", "envoy", "gateway")
    tls = {
        name: TlsFiles(**{field: getattr(issue(pki, name), field) for field in ("ca", "cert", "key")}) for name in names
    }
    config = settings(tmp_path, tls=tls["registry"])
    service = await build(config, store=MemoryStore())
    admin = (("x-weir-scopes", "admin inference"), ("x-weir-key-id", "k1"), ("x-weir-tenant", "ops"))
    weak = (("x-weir-scopes", "inference"), ("x-weir-key-id", "k2"))
    async with serve(service, config) as running, asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        await running.ready.wait()

        async def as_peer(name: str, metadata: tuple[tuple[str, str], ...] = ()) -> Client:
            channel = make_channel(
                f"127.0.0.1:{running.port}",
                tls=tls[name],
                server_name="registry.weir.internal",
                translate_errors=True,
            )
            return Client(await stack.enter_async_context(channel), metadata)

        await (await as_peer("cli")).SetTenant(tenant("acme"))
        await (await as_peer("envoy", admin)).SetTenant(tenant("globex"))
        for peer, metadata, reason in (
            ("envoy", weak, Reason.SCOPE_MISSING),
            ("envoy", (), Reason.SCOPE_MISSING),
            ("gateway", admin, Reason.PERMISSION_DENIED),
        ):
            client = await as_peer(peer, metadata)
            assert (await refused(client.SetTenant(tenant("evil")))).reason is reason
            assert (await refused(client.ListKeys(pb.ListKeysRequest()))).reason is reason
            assert (await refused(client.ListPoolLevels(pb.ListPoolLevelsRequest()))).reason is reason
            price = pb.SetPriceRequest(price=pb.Price(model="*"))
            assert (await refused(client.SetPrice(price))).reason is reason


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
                replica.SetTenant(tenant(f"t{number}", workloads=[workload]))
                for number, replica in enumerate([one, two] * 4)
            ),
            return_exceptions=True,
        )
        winners = [result for result in results if not isinstance(result, BaseException)]
        assert len(winners) == 1
        assert {error.limit for error in results if isinstance(error, WeirError)} == {"tenant.workloads[0]"}
        await asyncio.gather(
            *(replica.SetTenant(tenant(f"u{number}")) for number, replica in enumerate([one, two] * 5))
        )
        etcd.restart()
        await one.SetTenant(tenant("after"))
        assert "after" in {item.id for item in (await one.ListTenants(pb.ListTenantsRequest())).tenants}
