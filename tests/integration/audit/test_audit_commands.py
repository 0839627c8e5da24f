"""`weir audit` against a real service: what an owner types, and reads."""

from __future__ import annotations

from pathlib import Path

from weir.registry.v1 import registry_pb2 as pb

from libs.registry import MemoryStore
from tests.support.audit import audit_service, connect, record
from tests.support.certificates import tls_of
from tests.support.operator import NAME, Operator
from tests.support.registry_service import put


async def test_erase_export_verify_rotate(tmp_path: Path) -> None:
    weir, store, file = Operator(tmp_path), MemoryStore(), tmp_path / "acme.jsonl"
    await put(store, pb.RoleBinding(principal=f"operator:{NAME}", roles=["owner"]))
    async with audit_service(tmp_path, store=store, tls=weir.tls("audit")) as audit:
        weir.services["audit-0"] = {"service": "audit", "address": f"127.0.0.1:{audit.port}"}
        weir.describe()
        gateway = tls_of(tmp_path / "pki", "gateway", "gateway-0")
        async with connect(audit.port, tls=gateway) as link:
            for number in range(1, 4):
                await link.append(record(number, tenant=("acme", "globex")[number % 2]))
        whom = ("audit", "erase", "--tenant", "globex", "--reason", "tenant_left", "--reference", "T-1")
        tried = await weir(*whom, "--dry-run")
        assert "1 keys of globex would go" in tried.out, tried.err
        done = await weir(*whom)
        assert "1 keys of globex destroyed; tombstone 4" in done.out, done.err
        again = await weir(*whom)
        assert (again.code, "no key seals" in again.err) == (1, True)
        wrong = await weir("audit", "erase", "--tenant", "acme", "--reason", "because")
        assert (wrong.code, "subject_request" in wrong.err) == (1, True)
        tail = (await weir("audit", "tail", "-o", "wide")).out
        assert tail.count("(erased by tombstone 4)") == 2
        assert f"operator:{NAME} erased globex (tenant_left T-1): 1 keys" in tail
        records = (await weir("audit", "tail", "--tenant", "globex", "--json")).json()["records"]
        assert [int(each["erased_by"]) for each in records] == [4, 4, 0]
        report = (await weir("audit", "verify", "--json")).json()
        assert (report["ok"], int(report["erased"]), int(report["tombstones"])) == (True, 2, 1)
        pinned = ("--fingerprint", report["key_fingerprint"])
        offline = await weir("audit", "verify", "--directory", tmp_path / "state", *pinned, "--json")
        assert offline.json()["erased"] == 2
        assert offline.json()["notes"] == []
        exported = await weir("audit", "export", file, "--tenant", "globex")
        assert (exported.code, file.stat().st_mode & 0o777) == (0, 0o600), exported.err
        held = (await weir("audit", "verify", "--export", file, *pinned, "--json")).json()
        assert (held["records"], held["erased"], held["tenant"]) == (3, 2, "globex")
        taken = await weir("audit", "export", file)
        assert (taken.code, "exists" in taken.err) == (1, True)
        file.write_bytes(file.read_bytes().replace(b'"tenant_left"', b'"mistake"', 1))
        broken = await weir("audit", "verify", "--export", file)
        assert (broken.code, "DOES NOT HOLD" in broken.err) == (1, True)
        other = await weir("audit", "verify", "--export", tmp_path / "none")
        assert (other.code, "none" in other.err) == (1, True)
        rotated = (await weir("audit", "rotate")).out
        assert "keys are wrapped by" in rotated
        assert (await weir("audit", "verify")).code == 0
