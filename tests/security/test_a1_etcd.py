"""A1: everybody may do in etcd what the table of stores says, and no more: each cell, and every way around it known."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from aetcd import rpc
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.identity import Identity, Operator, etcd_user
from libs.authority.stores import ROOT_USER, ROWS, Access, Range, may
from libs.errors import Reason, WeirError
from libs.registry import Put, keys
from libs.registry.authorities import establish
from tests.support.guarded_etcd import OTHERS, PROCESSES, GuardedEtcd, guarded_etcd

pytestmark = pytest.mark.asyncio(loop_scope="module")
BY_SERVICE = {each.service: each for each in PROCESSES}
FOREIGN = "somebody-else"
RANGES = sorted(
    {
        *(each.of(of) for row in ROWS.values() for each in row.access for of in ("worker-1", "audit-1", FOREIGN)),
        Range.under("/"),
        Range.under(keys.SECRETS),
        Range.under(keys.key("endpoints", "")),
    }
)
"""The table's, and what is around them."""
SECRET = keys.SECRETS + "keys/abc"
STRANGERS = [
    *OTHERS,
    *(each for each in PROCESSES if each.service not in ("registry", "controlplane", "rollout", "door")),
]
"""Who has no business with etcd itself."""
ATTACKERS = [BY_SERVICE["worker"], BY_SERVICE["safety"], Identity("demo-client")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def etcd(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GuardedEtcd]:
    async with guarded_etcd(tmp_path_factory.mktemp("guarded")) as running:
        root = running.root()
        await root.txn(puts=[Put(SECRET, b"a hash"), Put(keys.key("tenants", "acme"), b"a tenant")])
        await root.close()
        yield running


def value_for(identity: Identity, key: str) -> bytes:
    """What the process would write there: the door looks into endpoints."""
    if not key.startswith(keys.key("endpoints", "")):
        return b"written"
    return keys.encode(
        pb.Endpoint(
            service=identity.service,
            instance=identity.instance,
            zone=identity.zone,
            pool=identity.pool,
            address="127.0.0.1:1",
        )
    )


async def allowed(call: Any) -> bool:
    """Whether the call passed; it fails only for want of a right."""
    try:
        await call
    except WeirError as error:
        if "refuses this process" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize("service", ROWS)
@pytest.mark.timeout(60)
async def test_a1_every_cell_of_the_table_holds(etcd: GuardedEtcd, service: str) -> None:
    identity = BY_SERVICE[service]
    store = etcd.store(identity)
    wrong = []
    for each in (each.of(identity.instance) for each in {*RANGES, *ROWS[service].access}):
        key = each.start if not each.end else each.start + "x"
        whole = await allowed(store.get_prefix(each.start) if each.end else store.get(each.start))
        wrote = await allowed(store.txn(puts=[Put(key, value_for(identity, key))]))
        deleted = await allowed(store.txn(deletes=[key]))
        expected = may(identity, Access.READ, each), may(identity, Access.WRITE, Range(key))
        if (whole, wrote) != expected or deleted != wrote:
            wrong.append((str(each), "read, written, deleted", whole, wrote, deleted, "expected", expected))
    await store.close()
    assert wrong == []


async def test_a1_the_table_gives_little() -> None:
    """What no mistake in the table may change."""
    for identity in (*PROCESSES, *OTHERS):
        readable = isinstance(identity, Identity) and may(identity, Access.READ, Range(SECRET))
        assert readable == (identity == BY_SERVICE["registry"]), identity
    checkpoints = Range(keys.AUDIT_CHECKPOINTS + "audit-1")
    assert [each.service for each in PROCESSES if may(each, Access.WRITE, checkpoints)] == ["door", "audit"]
    for service in ("collector", "edge-auth", "gateway", "predictor", "router", "safety", "worker"):
        own = Range(keys.key("endpoints", f"{service}/{{instance}}"))
        assert ROWS[service].access == {own: Access.BOTH}


@pytest.mark.parametrize("identity", STRANGERS, ids=etcd_user)
async def test_a1_etcd_lets_nobody_connect_who_has_no_need(etcd: GuardedEtcd, identity: Identity | Operator) -> None:
    async with etcd.channel(identity, etcd.server.endpoint) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.KVStub(channel).Range(rpc.RangeRequest(key=SECRET.encode()), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("identity", OTHERS, ids=etcd_user)
async def test_a1_a_tenants_workload_reads_nothing_of_etcd(etcd: GuardedEtcd, identity: Identity | Operator) -> None:
    async with etcd.channel(identity, etcd.door) as channel:
        for call in (
            rpc.KVStub(channel).Range(rpc.RangeRequest(key=SECRET.encode())),
            rpc.KVStub(channel).Txn(rpc.TxnRequest()),
            rpc.LeaseStub(channel).LeaseGrant(rpc.LeaseGrantRequest(TTL=5)),
            rpc.LeaseStub(channel).LeaseRevoke(rpc.LeaseRevokeRequest(ID=1)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            # A server's certificate opens no connection at all.
            assert caught.value.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE)


def nested(operation: Any) -> Any:
    return rpc.TxnRequest(success=[rpc.RequestOp(request_txn=rpc.TxnRequest(success=[operation]))])


READ = rpc.RequestOp(request_range=rpc.RangeRequest(key=b"/", range_end=b"0"))
WRITE = rpc.RequestOp(request_put=rpc.PutRequest(key=SECRET.encode(), value=b"forged"))


@pytest.mark.parametrize("attacker", ATTACKERS, ids=etcd_user)
@pytest.mark.parametrize(
    "request_",
    [
        nested(READ),  # GHSA-rfx7-8w68-q57q
        nested(WRITE),
        rpc.TxnRequest(success=[READ]),
        rpc.TxnRequest(failure=[WRITE]),
        rpc.TxnRequest(success=[WRITE]),
        rpc.TxnRequest(success=[rpc.RequestOp(request_delete_range={"key": b"/", "range_end": b"0"})]),
        rpc.TxnRequest(success=[rpc.RequestOp(request_delete_range={"key": b"/", "range_end": b"\0"})]),
        # Whether the condition holds would tell whether the key is there.
        rpc.TxnRequest(compare=[rpc.Compare(key=SECRET.encode(), target=rpc.Compare.MOD, mod_revision=0)]),
        rpc.TxnRequest(compare=[rpc.Compare(key=b"/", range_end=b"0", target=rpc.Compare.MOD, mod_revision=0)]),
        rpc.RangeRequest(key=SECRET.encode(), serializable=True),
        rpc.RangeRequest(key=b"\0", range_end=b"\0"),
        rpc.RangeRequest(key=b"/", range_end=b"0", count_only=True),
    ],
    ids=lambda request: str(request)[:60],
)
async def test_a1_no_request_passes_by_the_door(etcd: GuardedEtcd, attacker: Identity, request_: Any) -> None:
    async with etcd.channel(attacker, etcd.door) as channel:
        kv = rpc.KVStub(channel)
        call = kv.Txn if isinstance(request_, rpc.TxnRequest) else kv.Range
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request_)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    root = etcd.root()
    kept = await root.get(SECRET)
    await root.close()
    assert kept is not None
    assert kept.value == b"a hash"


@pytest.mark.parametrize("attacker", ATTACKERS[:2], ids=etcd_user)
async def test_a1_the_other_branch_of_a_transaction_is_refused(etcd: GuardedEtcd, attacker: Identity) -> None:
    own = keys.key("endpoints", f"{attacker.service}/{attacker.instance}").encode()
    never = rpc.Compare(key=own, target=rpc.Compare.MOD, result=rpc.Compare.GREATER, mod_revision=2**60)
    async with etcd.channel(attacker, etcd.door) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.KVStub(channel).Txn(rpc.TxnRequest(compare=[never], failure=list(nested(READ).success)))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("attacker", ATTACKERS[:2], ids=etcd_user)
async def test_a1_a_range_from_ones_own_key_on_is_refused(etcd: GuardedEtcd, attacker: Identity) -> None:
    own = keys.key("endpoints", f"{attacker.service}/{attacker.instance}").encode()
    async with etcd.channel(attacker, etcd.door) as channel:
        for end in (b"\0", own + b"0", b"0"):  # GHSA-xg4h-6gfc-h4m8, of the watch
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rpc.KVStub(channel).Range(rpc.RangeRequest(key=own, range_end=end))
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "has no right to this" in (caught.value.details() or "")


@pytest.mark.parametrize("attacker", ATTACKERS, ids=etcd_user)
@pytest.mark.parametrize(
    "method",
    [
        *("KV/Put", "KV/DeleteRange", "KV/Compact", "Watch/Watch", "Lease/LeaseLeases", "Lease/LeaseTimeToLive"),
        *("Cluster/MemberList", "Cluster/MemberAdd", "Cluster/MemberRemove"),
        *(f"Maintenance/{each}" for each in ("Snapshot", "Alarm", "Defragment", "Hash", "HashKV", "MoveLeader")),
        *("Maintenance/Status", "Auth/AuthDisable", "Auth/UserAdd", "Auth/UserGet", "Auth/RoleGrantPermission"),
        *("Auth/Authenticate", "Auth/UserChangePassword"),
    ],
)
async def test_a1_what_nobody_needs_is_not_there(etcd: GuardedEtcd, attacker: Identity, method: str) -> None:
    async with etcd.channel(attacker, etcd.door) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/etcdserverpb.{method}")(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    "claim",
    [{"pool": "dedicated"}, {"zone": "zone-b"}, {"region": "eu"}, {"instance": FOREIGN}, {"service": "gateway"}],
    ids=lambda claim: next(iter(claim)),
)
async def test_a1_a_worker_registers_only_what_its_certificate_says(etcd: GuardedEtcd, claim: dict[str, str]) -> None:
    worker = BY_SERVICE["worker"]
    true = {field: getattr(worker, field) for field in ("service", "instance", "zone", "pool")}
    true["address"] = "127.0.0.1:1"
    store = etcd.store(worker)
    key = keys.key("endpoints", f"{worker.service}/{worker.instance}")
    await store.txn(puts=[Put(key, keys.encode(pb.Endpoint(**true)))])
    assert not await allowed(store.txn(puts=[Put(key, keys.encode(pb.Endpoint(**true | claim)))]))
    assert not await allowed(store.txn(puts=[Put(key, b"no resource")]))
    await store.close()


@pytest.mark.parametrize(
    "told",
    [{"address": "worker-1:7700"}, {"address": "0.0.0.0:7700"}, {"address": ""}, {"metrics_address": "worker-1:7800"}],
    ids=lambda told: "-".join(map("".join, told.items())),
)
async def test_f1_an_endpoint_that_nobody_could_be_sent_to_is_not_registered(
    etcd: GuardedEtcd, told: dict[str, str]
) -> None:
    worker = BY_SERVICE["worker"]
    store, key = etcd.store(worker), keys.key("endpoints", f"{worker.service}/{worker.instance}")
    endpoint = pb.Endpoint(service=worker.service, instance=worker.instance, zone=worker.zone, pool=worker.pool)
    endpoint.address = "127.0.0.1:1"
    await store.txn(puts=[Put(key, keys.encode(endpoint))])
    for field, value in told.items():
        setattr(endpoint, field, value)
    with pytest.raises(WeirError, match="no endpoint") as caught:
        await store.txn(puts=[Put(key, keys.encode(endpoint))])
    assert caught.value.reason is Reason.INVALID_REQUEST
    await store.close()


async def test_a1_leases_work_and_cannot_be_guessed(etcd: GuardedEtcd) -> None:
    worker, safety = (etcd.store(BY_SERVICE[each]) for each in ("worker", "safety"))
    key = keys.key("endpoints", "worker/worker-1")
    lease, other = await worker.lease_grant(5), await safety.lease_grant(5)
    assert min(lease, other) > 2**32
    assert abs(lease - other) > 2**32
    await worker.txn(puts=[Put(key, value_for(BY_SERVICE["worker"], key), lease)])
    assert await worker.lease_keepalive(lease) > 0
    await worker.lease_revoke(lease)
    assert await worker.get(key) is None
    with pytest.raises(WeirError) as caught:
        await worker.lease_keepalive(lease)
    assert caught.value.reason is Reason.NOT_FOUND
    await worker.close()
    await safety.close()


async def test_a1_etcds_http_gateway_is_off(etcd: GuardedEtcd) -> None:
    tls = etcd.files["registry-1"]
    context = ssl.create_default_context(cafile=tls.ca)
    context.check_hostname = False
    context.load_cert_chain(tls.cert, tls.key)

    def ask() -> int:
        body = json.dumps({"key": "Lw==", "range_end": "MA=="}).encode()
        try:
            with urllib.request.urlopen(
                f"https://{etcd.server.endpoint}/v3/kv/range", body, timeout=5, context=context
            ) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert await asyncio.to_thread(ask) == 404


async def test_a1_rights_are_given_again_and_taken_away(tmp_path: Path) -> None:
    """The table's next version: one process more, one less; nobody else notices."""
    async with guarded_etcd(tmp_path) as etcd:
        assert await etcd.establish() == []
        registry, rollout = etcd.store(BY_SERVICE["registry"]), etcd.store(BY_SERVICE["rollout"])
        fewer = [each for each in PROCESSES if each.service != "rollout"]
        said = await etcd.establish(fewer, dry_run=True)
        assert "delete user rollout-1" in said
        assert "delete role service.rollout" in said
        assert await rollout.get(keys.FENCE) is None
        assert await etcd.establish([BY_SERVICE["registry"]], keep=True) == []

        stop = asyncio.Event()

        async def work() -> int:
            done = 0
            while not stop.is_set():
                await registry.txn(puts=[Put(keys.key("tenants", "acme"), b"x")])
                done += 1
            return done

        working = asyncio.create_task(work())
        assert set(await etcd.establish(fewer)) == set(said)
        assert not await allowed(rollout.get(keys.FENCE))
        assert "grant service.rollout read /weir/v2/*" in await etcd.establish()
        assert await rollout.get(keys.FENCE) is None
        stop.set()
        assert await working > 0
        await registry.close()
        await rollout.close()


async def test_a1_an_etcd_that_lost_its_data_gets_its_users_again(tmp_path: Path) -> None:
    async with guarded_etcd(tmp_path) as etcd:
        etcd.server.stop(kill=True)
        etcd.server.start()
        store = etcd.store(BY_SERVICE["controlplane"])
        assert not await allowed(store.get(SECRET))
        etcd.server.stop(kill=True)
        etcd.server.wipe()
        etcd.server.start()
        assert "enable authentication" in await etcd.establish()
        assert not await allowed(store.get(SECRET))
        assert await store.get(keys.FENCE) is None
        await store.close()


async def test_a1_roots_certificate_alone_gives_rights(etcd: GuardedEtcd) -> None:
    for name in ("registry-1", "door-1"):
        with pytest.raises(WeirError):
            await establish([etcd.server.endpoint], etcd.files[name], PROCESSES)
    assert ROOT_USER not in {etcd_user(each) for each in PROCESSES}
