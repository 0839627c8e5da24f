"""A1, A3: every method refuses every certificate that the table of calls does not name, over real TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.authority.calls import ANY, CALLS, may_call
from libs.authority.identity import PERSON, Identity, Operator, dns_name, etcd_user
from libs.config import TlsFiles
from libs.rpc import make_channel, make_server
from libs.rpc.server import bind
from libs.service import serve
from services.collector.app import build
from services.collector.config import Settings
from tests.support.guarded_etcd import OTHERS, PROCESSES, certificates

pytestmark = pytest.mark.asyncio(loop_scope="module")
CALLERS = [each for each in (*PROCESSES, *OTHERS) if each != Identity("edge")]
ABSENT = "/weir.audit.v1.AuditService/NotInTheTable"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TlsFiles]:
    return certificates(tmp_path_factory.mktemp("pki"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address(files: dict[str, TlsFiles]) -> AsyncIterator[str]:
    """A server that has every method there is, and one more, and answers whoever is let in."""

    async def answer(request: Any, context: grpc.aio.ServicerContext) -> bytes:
        return b""

    server = make_server(may_call=may_call)
    handler = grpc.unary_unary_rpc_method_handler(answer)
    names = {service: list(methods) for service, methods in CALLS.items()}
    names["weir.audit.v1.AuditService"].append(ABSENT.rpartition("/")[2])
    server.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(name, dict.fromkeys(each, handler)) for name, each in names.items())
    )
    port = bind(server, "127.0.0.1:0", tls=files["audit-1"])
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def outcome(channel: grpc.aio.Channel, method: str) -> bool:
    try:
        await channel.unary_unary(method)(b"", timeout=10)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
            raise
        return False
    return True


@pytest.mark.parametrize("caller", CALLERS, ids=etcd_user)
async def test_a1_every_cell_of_the_table_of_calls_holds(
    files: dict[str, TlsFiles], address: str, caller: Identity | Operator
) -> None:
    name = PERSON if isinstance(caller, Operator) else caller.service
    wrong = []
    async with make_channel(address, tls=files[etcd_user(caller)], server_name=dns_name("audit")) as channel:
        for service, methods in CALLS.items():
            for method, callers in methods.items():
                if await outcome(channel, f"/{service}/{method}") != bool(callers & {name, ANY}):
                    wrong.append(f"{service}/{method}")
        assert not await outcome(channel, ABSENT)
    assert wrong == []


async def test_a1_a_service_applies_the_table(tmp_path: Path, files: dict[str, TlsFiles]) -> None:
    """Whatever is served by libs.service: here one that asks nobody itself."""
    settings = Settings(
        service="collector", instance="collector-1", zone="zone-a", tls=files["collector-1"], directory=str(tmp_path)
    )
    async with serve(await build(settings), settings) as running:
        await running.ready.wait()
        for name, allowed in (("gateway-1", True), ("demo-client", False)):
            async with make_channel(
                f"127.0.0.1:{running.port}", tls=files[name], server_name=dns_name("collector")
            ) as channel:
                healthy = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
                assert healthy.status == health_pb2.HealthCheckResponse.SERVING
                export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
                if allowed:
                    await export(b"", timeout=5)
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await export(b"", timeout=5)
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
