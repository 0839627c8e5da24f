"""The audit service as a real server: appends, reads, verification, failing disks, damage."""

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.identity import Operator
from libs.errors import Reason, WeirError
from libs.registry import MemoryStore, keys
from libs.rpc import make_channel
from tests.support.audit import KeptStore, audit_service, connect, record
from tests.support.certificates import tls_of
from tests.support.registry_service import put


async def test_records_are_numbered_once_and_read_back(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        first = await asyncio.gather(*(link.append(record(number)) for number in range(50)))
        assert sorted(one.sequence for one in first) == list(range(1, 51))
        again = await asyncio.gather(*(link.append(record(number)) for number in range(50)))
        assert [one.sequence for one in again] == [one.sequence for one in first]
        assert all(one.duplicate for one in again)
        tail = await audit.stub.Tail(audit_pb2.TailRequest(limit=3), timeout=10)
        assert [stored.record.id for stored in tail.records] == ["r47", "r48", "r49"]
        assert tail.records[0].record.request.tenant == "acme"
        verdict = await audit.stub.Verify(audit_pb2.VerifyRequest(), timeout=10)
        assert verdict.ok
        # Both reads were recorded.
        assert verdict.records == 52
        assert len(verdict.head) == 64


async def test_the_same_record_sent_twice_at_once_is_stored_once(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        answers = await asyncio.gather(*(link.append(record(1)) for _ in range(10)))
        assert {one.sequence for one in answers} == {1}
        assert sum(not one.duplicate for one in answers) == 1


async def test_ids_and_numbers_survive_a_restart(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await link.append(record(1))
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        assert await link.append(record(1)) == audit_pb2.Appended(sequence=1, duplicate=True)
        assert await link.append(record(2)) == audit_pb2.Appended(sequence=2)


async def test_the_tail_of_one_tenant(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        for number in range(6):
            await link.append(record(number, tenant=("acme", "globex")[number % 2]))
        safety = audit_pb2.SafetyEvent(request_id="r1", tenant="globex", stage="input", category="pii.email")
        await link.append(audit_pb2.Record(id="s1", time=record(1).time, source="gateway/gateway-0", safety=safety))
        tail = await audit.stub.Tail(audit_pb2.TailRequest(tenant="globex"), timeout=10)
        assert [stored.record.id for stored in tail.records] == ["r1", "r3", "r5", "s1"]
        everything = (await audit.stub.Tail(audit_pb2.TailRequest(), timeout=10)).records
        assert everything[-1].record.admin.resource == "audit/globex"


async def test_a_header_tells_what_was_used_and_nothing_else(tmp_path: Path) -> None:
    one = record(1)
    one.request.worker = "worker-secret"
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await link.append(one)
        # No training on customer data is an explicit flag, not an absence.
        [shown] = (await audit.stub.Tail(audit_pb2.TailRequest(), timeout=10)).records
        assert (shown.record, shown.erased_by) == (one, 0)
    stored = json.loads((tmp_path / "state" / "log" / "000000000000000001.log").read_text().splitlines()[0])["record"]
    assert {name: stored.pop(name) for name in ("key", "nonce", "sealed")}.keys() == {"key", "nonce", "sealed"}
    assert stored == {
        "id": "r1",
        "source": "gateway/gateway-0",
        "time": "2027-01-15T08:00:00Z",
        "class": "request",
        "tenant": "acme",
        "usage": {"prompt_tokens": 3, "outcome": "stop", "training_allowed": False},
    }
    everything = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert b"worker-secret" not in everything


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": ""}, Reason.INVALID_REQUEST),
        ({"id": "x" * 129}, Reason.INVALID_REQUEST),
        ({"source": ""}, Reason.INVALID_REQUEST),
        ({"source": "registry/registry-0"}, Reason.PERMISSION_DENIED),
        ({"request": audit_pb2.RequestEvent(model="m" * 20_000)}, Reason.PAYLOAD_TOO_LARGE),
    ],
)
async def test_bad_records_are_refused(tmp_path: Path, change: dict[str, object], reason: Reason) -> None:
    bad = record(1)
    bad.MergeFrom(audit_pb2.Record(**change))
    for name, value in change.items():
        if isinstance(value, str):
            setattr(bad, name, value)
    bare = audit_pb2.Record(id="r2", source="gateway/gateway-0")
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        with pytest.raises(WeirError) as caught:
            await link.append(bad)
        assert caught.value.reason is reason
        with pytest.raises(WeirError) as caught:
            await link.append(bare)
        assert caught.value.limit == "time"
        assert (await link.append(record(3))).sequence == 1


async def test_the_registry_hands_over_what_the_rollout_controller_decided(tmp_path: Path) -> None:
    decided = record(1, source="rollout/rollout")
    async with audit_service(tmp_path) as audit:
        async with connect(audit.port, service="registry") as link:
            assert (await link.append(decided)).sequence == 1
            with pytest.raises(WeirError) as caught:
                await link.append(record(2, source="gateway/gateway-0"))
            assert caught.value.reason is Reason.PERMISSION_DENIED
        async with connect(audit.port, service="gateway") as link:
            with pytest.raises(WeirError) as caught:
                await link.append(record(3, source="rollout/rollout"))
            assert caught.value.reason is Reason.PERMISSION_DENIED


async def test_a_full_disk_refuses_turns_unhealthy_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        await link.append(record(1))
        async with make_channel(f"127.0.0.1:{audit.port}", tls=None) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING

            def full(descriptor: int, data: bytes) -> int:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            monkeypatch.setattr(audit.service._files._disk, "write", full)
            with pytest.raises(WeirError) as caught:
                await link.append(record(2))
            assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(WeirError):
                await audit.stub.Tail(audit_pb2.TailRequest(), timeout=10)
            monkeypatch.undo()
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            watch.cancel()
        assert (await link.append(record(2))).sequence == 2
        assert (await audit.stub.Verify(audit_pb2.VerifyRequest(), timeout=10)).ok


async def test_damage_is_told_and_never_appended_to(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit, connect(audit.port) as link:
        for number in range(5):
            await link.append(record(number))
    segment = tmp_path / "state" / "log" / "000000000000000001.log"
    segment.write_bytes(segment.read_bytes().replace(b'"tenant":"acme"', b'"tenant":"evil"', 1))
    async with audit_service(tmp_path, wait=False) as audit, connect(audit.port) as link:
        verdict = await audit.stub.Verify(audit_pb2.VerifyRequest(), timeout=10)
        assert not verdict.ok
        assert "does not match its hash" in verdict.faults[0]
        assert not audit.ready.is_set()
        with pytest.raises(WeirError) as caught:
            await link.append(record(9))
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_a_rollback_of_log_and_checkpoints_is_told_by_the_anchor(tmp_path: Path) -> None:
    store = KeptStore()
    async with audit_service(tmp_path, store=store) as audit, connect(audit.port) as link:
        await link.append(record(1))
        before = {path: path.read_bytes() for path in (tmp_path / "state").rglob("*.log")}
        await link.append(record(2))
    assert await store.get(keys.AUDIT_CHECKPOINTS + "audit-0") is not None
    for path, data in before.items():
        path.write_bytes(data)
    async with audit_service(tmp_path, store=store, wait=False) as audit:
        verdict = await audit.stub.Verify(audit_pb2.VerifyRequest(), timeout=10)
        assert verdict.faults[0] == "records 2 to 2 are missing or damaged: a checkpoint counts them"
        assert not audit.ready.is_set()


async def test_who_may_write_and_who_may_read(tmp_path: Path) -> None:
    people = [Operator(name) for name in ("ann", "joe", "zoe", "eve")]
    files = {name: tls_of(tmp_path / "pki", name) for name in ("audit", "probe")}
    files |= {f"operator.{each.name}": tls_of(tmp_path / "pki", each) for each in people}
    files |= {name: tls_of(tmp_path / "pki", name, f"{name}-0") for name in ("gateway", "router")}
    store = MemoryStore()
    await put(
        store,
        pb.RoleBinding(principal="operator:ann", roles=["auditor"]),
        pb.RoleBinding(principal="operator:joe", roles=["auditor"], tenants=["acme"]),
        pb.RoleBinding(principal="operator:zoe", roles=["viewer", "publisher", "releaser", "operator"]),
    )
    async with audit_service(tmp_path, store=store, tls=files["audit"]) as audit:

        async def read(peer: str, tenant: str = "") -> audit_pb2.TailResponse:
            channel = make_channel(
                f"127.0.0.1:{audit.port}",
                tls=files[peer],
                server_name="audit.weir.internal",
                translate_errors=True,
            )
            async with channel:
                return await audit_pb2_grpc.AuditServiceStub(channel).Tail(
                    audit_pb2.TailRequest(tenant=tenant), timeout=10
                )

        async with connect(audit.port, tls=files["gateway"]) as link:
            assert (await link.append(record(1))).sequence == 1
        for peer in ("gateway", "router", "probe", "operator.zoe", "operator.eve", "operator.joe"):
            with pytest.raises(WeirError) as caught:
                await read(peer)
            assert caught.value.reason in (Reason.PERMISSION_DENIED, Reason.SCOPE_MISSING)
        assert (await read("operator.ann")).records[0].record.id == "r1"
        actors = [stored.record.admin.actor for stored in (await read("operator.ann")).records]
        assert actors[1] == "operator:ann"
        await read("operator.joe", "acme")
        with pytest.raises(WeirError):
            await read("operator.joe", "globex")
        async with connect(audit.port, service="router", tls=files["router"]) as link:
            with pytest.raises(WeirError):
                await link.append(record(2, source="router/router-0"), seconds=1)
