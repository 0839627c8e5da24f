"""Who may ask what, by certificate: the store reads the log, gateways ask for a tenant, nobody else does either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.records.v1 import records_pb2, records_pb2_grpc

from libs.authority.identity import Operator
from libs.errors import Reason, WeirError
from libs.rpc import make_channel
from tests.support.audit import audit_service, connect, record
from tests.support.certificates import tls_of
from tests.support.records import records_service


async def test_each_certificate_may_what_the_table_says(tmp_path: Path) -> None:
    names = ("audit", "records", "gateway", "predictor")
    tls = {name: tls_of(tmp_path / "pki", name, f"{name}-0") for name in names}
    tls["person"] = tls_of(tmp_path / "pki", Operator("nobody"))
    async with (
        audit_service(tmp_path, tls=tls["audit"]) as audit,
        connect(audit.port, tls=tls["gateway"]) as link,
        records_service(tmp_path / "records", audit.port, tls=tls["records"]) as records,
    ):
        await link.append(record(1))

        async def asked(who: str, what: str, **fields: Any) -> Any:
            target = f"127.0.0.1:{records.port}"
            async with make_channel(
                target, tls=tls[who], server_name="records.weir.internal", translate_errors=True
            ) as channel:
                stub = records_pb2_grpc.RecordsServiceStub(channel)
                return await getattr(stub, what)(getattr(records_pb2, f"{what}Request")(**fields), timeout=20)

        [row] = (await asked("gateway", "Usage", tenant="acme")).rows
        assert row.requests == 1
        for who, what, fields in (
            ("gateway", "Usage", {}),
            ("gateway", "ListRequests", {"tenant": "acme"}),
            ("predictor", "Usage", {"tenant": "acme"}),
            ("records", "Rebuild", {}),
        ):
            with pytest.raises(WeirError) as refused:
                await asked(who, what, **fields)
            assert refused.value.reason is Reason.PERMISSION_DENIED, (who, what)
        with pytest.raises(WeirError) as unknown:
            await asked("person", "Usage", tenant="acme")
        assert unknown.value.reason is Reason.SCOPE_MISSING, "nobody gave it a role"
        async with make_channel(
            f"127.0.0.1:{audit.port}", tls=tls["gateway"], server_name="audit.weir.internal", translate_errors=True
        ) as channel:
            with pytest.raises(WeirError) as read:
                await audit_pb2_grpc.AuditServiceStub(channel).Read(audit_pb2.ReadRequest(), timeout=20)
            assert read.value.reason is Reason.PERMISSION_DENIED
