"""Exports: signed, whole, and an auditor's own tenants only."""

from __future__ import annotations

from pathlib import Path

import pytest
from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.registry.v1 import registry_pb2 as pb

from libs.auditlog.export import Item, check
from libs.authority.identity import Operator
from libs.errors import Reason, WeirError
from libs.registry import MemoryStore
from libs.rpc import make_channel
from tests.support.audit import audit_service, connect, record
from tests.support.certificates import tls_of
from tests.support.registry_service import put


async def lines_of(call: object) -> list[bytes]:
    found = b"".join([piece.lines async for piece in call])  # type: ignore[attr-defined]
    return found.splitlines(keepends=True)


async def test_an_export_holds_what_was_asked_for_and_proves_it(tmp_path: Path) -> None:
    async with audit_service(tmp_path, segment_bytes=2000) as audit, connect(audit.port) as link:
        for number in range(1, 13):
            await link.append(record(number, tenant=("acme", "globex")[number % 2]))
        done = await audit.stub.Erase(audit_pb2.EraseRequest(tenant="globex", reason="tenant_left"), timeout=10)
        verdict = await audit.stub.Verify(audit_pb2.VerifyRequest(), timeout=10)
        everything = check(
            await lines_of(audit.stub.Export(audit_pb2.ExportRequest(), timeout=10)),
            fingerprint=verdict.key_fingerprint,
        )
        assert (everything.records, everything.erased, everything.chained) == (14, 6, True)
        lines = await lines_of(audit.stub.Export(audit_pb2.ExportRequest(tenant="globex"), timeout=10))
        own = check(lines)
        # Its six records and the tombstone that erased them.
        assert (own.records, own.erased, own.chained, own.head.tenant) == (7, 6, False, "globex")
        assert b"acme" not in b"".join(lines)
        [number] = done.tombstones
        assert {item.erased_by for item in map(_item, lines[1:-2])} == {number}
        some = await lines_of(audit.stub.Export(audit_pb2.ExportRequest(first=3, last=5), timeout=10))
        assert [_item(line).line[-3:-2] for line in some[1:-1]] == ["3", "4", "5"]
        assert (_item(some[2]).record or {})["request"]["tenant"] == "acme"
        for bad in ({"first": 99}, {"data_class": "chats"}):
            with pytest.raises(WeirError) as caught:
                await lines_of(audit.stub.Export(audit_pb2.ExportRequest(**bad), timeout=10))
            assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, next(iter(bad)))
        newest = (await audit.stub.Tail(audit_pb2.TailRequest(limit=1), timeout=10)).records[-1]
        assert (newest.record.admin.action, newest.record.admin.resource) == ("audit.Export", "audit/*")


def _item(line: bytes) -> Item:
    import msgspec

    return msgspec.json.decode(line, type=Item)


async def test_auditors_read_their_tenants_and_erase_nothing(tmp_path: Path) -> None:
    people = ("ann", "joe", "zoe")
    files = {name: tls_of(tmp_path / "pki", Operator(name)) for name in people}
    gateway = tls_of(tmp_path / "pki", "gateway", "gateway-0")
    store = MemoryStore()
    await put(
        store,
        pb.RoleBinding(principal="operator:ann", roles=["owner"]),
        pb.RoleBinding(principal="operator:joe", roles=["auditor"], tenants=["acme"]),
        pb.RoleBinding(principal="operator:zoe", roles=["operator"]),
    )
    async with audit_service(tmp_path, store=store, tls=tls_of(tmp_path / "pki", "audit")) as audit:
        async with connect(audit.port, tls=gateway) as link:
            await link.append(record(1))
            await link.append(record(2, tenant="globex"))

        async def ask(who: str, method: str, request: object) -> object:
            channel = make_channel(
                f"127.0.0.1:{audit.port}",
                tls=files[who],
                server_name="audit.weir.internal",
                translate_errors=True,
            )
            async with channel:
                call = getattr(audit_pb2_grpc.AuditServiceStub(channel), method)(request, timeout=10)
                return await lines_of(call) if method == "Export" else await call

        mine = await ask("joe", "Export", audit_pb2.ExportRequest(tenant="acme"))
        assert check(mine).head.by == "operator:joe"  # type: ignore[arg-type]
        erase = audit_pb2.EraseRequest(tenant="acme", reason="mistake")
        for who, method, request in (
            ("joe", "Export", audit_pb2.ExportRequest()),
            ("joe", "Export", audit_pb2.ExportRequest(tenant="globex")),
            ("zoe", "Export", audit_pb2.ExportRequest(tenant="acme")),
            ("joe", "Erase", erase),
            ("zoe", "Erase", erase),
            ("joe", "RotateKeys", audit_pb2.RotateKeysRequest()),
        ):
            with pytest.raises(WeirError) as caught:
                await ask(who, method, request)
            assert caught.value.reason in (Reason.PERMISSION_DENIED, Reason.SCOPE_MISSING), (who, method)
        await ask("ann", "Erase", erase)
