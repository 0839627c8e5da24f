"""A3: a process is what its certificate says, whatever it says itself; renewed certificates are read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from prometheus_client import REGISTRY
from weir.admission.v1 import admission_pb2 as pb
from weir.admission.v1 import admission_pb2_grpc
from weir.mux.v1 import mux_pb2

from libs.authority.identity import Identity, Operator
from libs.config import ConfigError, ServiceSettings, TlsFiles
from libs.errors import Reason, WeirError, from_rpc_error
from libs.pki import issue, reissue
from libs.pki.authority import LEAF_LIFE
from libs.registry import EtcdStore
from libs.rpc import make_channel, make_server, require_own
from libs.rpc.credentials import TlsSource
from libs.rpc.server import bind
from libs.service import serve
from libs.service.certificate import check_certificate, watch_expiry
from libs.telemetry.tracing import configure_tracing, shutdown_tracing, span
from services.admission.app import build
from services.admission.config import Settings
from tests.support.certificates import tls_of
from tests.support.etcd import EtcdServer, EtcdTls
from tests.support.refusals import opened

ROOT = Path(__file__).resolve().parents[2]
SHARED = Identity("worker", "worker-a", "shared", "zone-a")


# ---- registrations ---------------------------------------------------------------------------------------------------


class Admission:
    """A served admission process, and workers that say what they like."""

    def __init__(self, service: Any, port: int, pki: Path, stack: contextlib.AsyncExitStack) -> None:
        self.service = service
        self._target = f"127.0.0.1:{port}"
        self._pki = pki
        self._stack = stack

    async def channel(self, identity: Identity | Operator) -> grpc.aio.Channel:
        files = issue(self._pki, identity)
        tls = TlsFiles(files.ca, files.cert, files.key)
        made = make_channel(self._target, tls=tls, server_name="admission.weir.internal")
        return await self._stack.enter_async_context(made)

    async def join(self, identity: Identity | Operator, **said: Any) -> Any:
        """The worker's stream after its welcome."""
        hello: dict[str, Any] = {
            "worker": "worker-a",
            "address": "127.0.0.1:7700",
            "zone": "zone-a",
            "pool": "shared",
            "model_versions": ["m@1"],
            "block_size": 16,
            "total_blocks": 100,
            "max_running": 4,
            "max_context": 512,
        }
        stub = admission_pb2_grpc.AdmissionServiceStub(await self.channel(identity))
        request = pb.ReportCapacityRequest(hello=pb.WorkerHello(**(hello | said)))
        call, frame = await opened(partial(stub.ReportCapacity, wait_for_ready=True), request)
        assert frame.HasField("welcome")
        return call

    @property
    def pools(self) -> dict[str, set[str]]:
        return {name: set(pool.fleet.workers) for name, pool in self.service.coordinator.pools.items()}


@pytest.fixture
async def admission(tmp_path: Path) -> AsyncIterator[Admission]:
    settings = Settings(instance="admission-0", tls=tls_of(tmp_path, "admission", "admission-0"), drain_seconds=0.1)
    service = await build(settings)
    async with serve(service, settings) as running, contextlib.AsyncExitStack() as stack:
        yield Admission(service, running.port, tmp_path, stack)


@pytest.mark.parametrize(
    ("field", "said"),
    [("pool", {"pool": "dedicated"}), ("instance", {"worker": "worker-b"}), ("zone", {"zone": "zone-b"})],
)
async def test_a3_a_worker_joins_only_as_what_its_certificate_says(
    admission: Admission, field: str, said: dict[str, str]
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await admission.join(SHARED, **said)
    error = from_rpc_error(refused.value)
    assert (error.reason, error.limit) == (Reason.PERMISSION_DENIED, field)
    assert not any(admission.pools.values())
    await admission.join(SHARED)
    assert admission.pools == {"shared": {"worker-a"}}


@pytest.mark.parametrize("identity", [Identity("worker"), Identity("worker-evil", "worker-a", "shared", "zone-a")])
async def test_a3_a_certificate_of_no_instance_or_of_another_service_joins_nothing(
    admission: Admission, identity: Identity
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await admission.join(identity)
    assert from_rpc_error(refused.value).reason is Reason.PERMISSION_DENIED
    assert not any(admission.pools.values())


async def test_a3_of_two_streams_of_one_worker_the_newer_one_stands(admission: Admission) -> None:
    first = await admission.join(SHARED)
    second = await admission.join(SHARED)
    assert await first.read() is grpc.aio.EOF
    assert admission.pools == {"shared": {"worker-a"}}
    second.cancel()


@pytest.mark.parametrize(
    "said",
    [{"instance": "gateway-1"}, {"zone": "zone-b"}, {"service": "ratelimit"}, {"instance": ""}],
    ids=lambda said: next(iter(said)),
)
async def test_a3_a_session_opens_only_in_the_own_name(admission: Admission, said: dict[str, str]) -> None:
    own = {"service": "gateway", "instance": "gateway-0", "zone": "zone-a"}
    stub = admission_pb2_grpc.AdmissionServiceStub(
        await admission.channel(Identity("gateway", "gateway-0", zone="zone-a"))
    )
    session = partial(stub.Session, wait_for_ready=True)
    nobody = admission_pb2_grpc.AdmissionServiceStub(await admission.channel(Identity("gateway"))).Session
    for start, hello in ((nobody, {"service": "gateway"}), (session, own | said)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await opened(start, pb.SessionRequest(hello=mux_pb2.Hello(**hello)))
        assert from_rpc_error(refused.value).reason is Reason.PERMISSION_DENIED
    call, frame = await opened(session, pb.SessionRequest(hello=mux_pb2.Hello(**own)))
    assert frame.HasField("welcome")
    call.cancel()


@pytest.mark.parametrize(
    "changed",
    [{"service": "gateway"}, {"instance": "worker-b"}, {"zone": "zone-b"}, {"pool": "dedicated"}],
    ids=lambda changed: next(iter(changed)),
)
def test_a3_a_process_does_not_start_as_somebody_else(tmp_path: Path, changed: dict[str, str]) -> None:
    class WorkerSettings(ServiceSettings, frozen=True, kw_only=True):
        pool: str = "shared"

    tls = tls_of(tmp_path, "worker", "worker-a", pool="shared", zone="zone-a")
    own: dict[str, Any] = {"service": "worker", "instance": "worker-a", "zone": "zone-a", "tls": tls}
    check_certificate(WorkerSettings(**own))
    [(field, value)] = changed.items()
    with pytest.raises(ConfigError, match=f"is of {field} .* configured as '{value}'"):
        check_certificate(WorkerSettings(**(own | changed)))


async def test_a3_the_program_says_why_it_does_not_start(tmp_path: Path) -> None:
    tls = tls_of(tmp_path, "router", "router-0", zone="zone-a")
    config = tmp_path / "router.json"
    said = {"instance": "router-1", "tls": {"ca": tls.ca, "cert": tls.cert, "key": tls.key}}
    config.write_text(json.dumps(said))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.router", "--config", str(config)), cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    _, told = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == os.EX_CONFIG
    assert b"is of instance 'router-0', this process is configured as 'router-1'" in told


def test_a3_a_person_or_a_foreign_certificate_serves_nothing(tmp_path: Path) -> None:
    person, foreign = issue(tmp_path, Operator("alice")), issue(tmp_path / "other", "router")
    for tls in (
        TlsFiles(person.ca, person.cert, person.key),
        TlsFiles(person.ca, foreign.cert, foreign.key),
        TlsFiles(person.ca, person.cert, foreign.key),
        TlsFiles(person.ca, "", ""),
    ):
        with pytest.raises(ConfigError, match="tls: "):
            check_certificate(ServiceSettings(service="router", instance="router-0", tls=tls))


# ---- who answers -----------------------------------------------------------------------------------------------------


async def test_a3_no_other_leaf_is_taken_for_etcd(tmp_path: Path) -> None:
    impostor, client = tls_of(tmp_path, "worker", "worker-a"), tls_of(tmp_path, "registry", "registry-0")
    server = EtcdServer(tmp_path / "etcd", tls=EtcdTls(Path(impostor.ca), Path(impostor.cert), Path(impostor.key)))
    server.start()
    try:
        store = EtcdStore([server.endpoint], tls=client)
        with pytest.raises(WeirError) as refused:
            await store.get("/weir/keys/secret")
        assert refused.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        await store.close()
    finally:
        server.stop()


class Traces(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans of anybody, and notes by which certificate they came."""

    def __init__(self) -> None:
        self.serials: asyncio.Queue[int] = asyncio.Queue()

    async def Export(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802
        self.serials.put_nowait(_serial(context))
        return trace_service_pb2.ExportTraceServiceResponse()


def _serial(context: grpc.aio.ServicerContext) -> int:
    [pem] = context.auth_context()["x509_pem_cert"]
    return x509.load_pem_x509_certificate(pem).serial_number


@contextlib.asynccontextmanager
async def traces_at(tls: TlsFiles, own: TlsFiles) -> AsyncIterator[Traces]:
    """A collector with this certificate, and a process with `own` that sends its spans there."""
    servicer, server = Traces(), make_server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    port = bind(server, "127.0.0.1:0", tls=tls)
    await server.start()
    configure_tracing(service="gateway", instance="g", zone="z", endpoint=f"127.0.0.1:{port}", tls=own)
    try:
        yield servicer
    finally:
        await asyncio.to_thread(shutdown_tracing)
        await server.stop(None)


def traced() -> None:
    with span("x", f"00-{random.getrandbits(128) | 1:032x}-00f067aa0ba902b7-01"):
        pass


async def test_a3_no_other_leaf_is_taken_for_the_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    own = tls_of(tmp_path, "gateway", "gateway-0")
    async with traces_at(tls_of(tmp_path, "worker", "worker-a"), own) as impostor:
        traced()
    assert impostor.serials.empty()
    async with traces_at(tls_of(tmp_path, "collector", "collector-0"), own) as collector:
        traced()
        await asyncio.wait_for(collector.serials.get(), 10)


# ---- renewed files ---------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def telling(tls: TlsFiles) -> AsyncIterator[str]:
    """A server that tells the serial number of its caller's certificate: once, or for every request of a stream."""

    async def once(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
        require_own(context, service="gateway")
        return str(_serial(context)).encode()

    async def stream(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield str(_serial(context)).encode()

    handlers = {
        "Once": grpc.unary_unary_rpc_method_handler(once),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server = make_server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("weir.test.Who", handlers),))
    port = bind(server, "127.0.0.1:0", tls=tls)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def on_disk(tls: TlsFiles) -> int:
    return x509.load_pem_x509_certificate(Path(tls.cert).read_bytes()).serial_number


async def test_a3_calls_go_out_with_the_renewed_certificate_and_streams_go_on(tmp_path: Path) -> None:
    own = tls_of(tmp_path, "gateway", "gateway-0")
    former = on_disk(own)
    async with (
        telling(tls_of(tmp_path, "router", "router-0")) as target,
        make_channel(target, tls=own, server_name="router.weir.internal") as channel,
    ):
        once = channel.unary_unary("/weir.test.Who/Once")
        stream = channel.stream_stream("/weir.test.Who/Stream")()
        await stream.write(b"")
        assert int(await stream.read()) == int(await once(b"", timeout=10)) == former
        reissue(tmp_path)
        assert int(await once(b"", timeout=10)) == on_disk(own) != former
        await stream.write(b"")
        assert int(await stream.read()) == former
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


async def test_a3_a_server_shows_its_renewed_certificate_and_trusts_by_the_renewed_bundle(tmp_path: Path) -> None:
    mesh, elsewhere = tmp_path / "mesh", tmp_path / "elsewhere"
    served, stranger = tls_of(mesh, "router", "router-0"), tls_of(elsewhere, "gateway", "gateway-0")
    moved = tls_of(elsewhere, "router", "router-0")
    async with telling(served) as target:

        async def ask() -> bytes:
            async with make_channel(target, tls=stranger, server_name="router.weir.internal") as channel:
                return await channel.unary_unary("/weir.test.Who/Once")(b"", timeout=10)

        with pytest.raises(grpc.aio.AioRpcError):
            await ask()
        # The other CA's files in place of ours: it is trusted, and what it issued is shown.
        for new, old in ((moved.ca, served.ca), (moved.key, served.key), (moved.cert, served.cert)):
            shutil.copy(new, old)
        assert int(await ask()) == on_disk(stranger)


async def test_a3_spans_go_out_with_the_renewed_certificate(tmp_path: Path) -> None:
    own = tls_of(tmp_path, "gateway", "gateway-0")
    async with traces_at(tls_of(tmp_path, "collector", "collector-0"), own) as collector:
        traced()
        former = await asyncio.wait_for(collector.serials.get(), 10)
        reissue(tmp_path)
        traced()
        assert former != await asyncio.wait_for(collector.serials.get(), 10) == on_disk(own)


def test_a3_a_process_tells_when_its_certificate_ends(tmp_path: Path) -> None:
    tls = tls_of(tmp_path, "router", "router-0")
    watch_expiry(tls)
    for days_ago in (0, 50):
        issued = time.time() - days_ago * 86_400
        reissue(tmp_path, now=partial(float, issued))
        left = REGISTRY.get_sample_value("weir_certificate_expiry_seconds")
        assert left == pytest.approx((LEAF_LIFE.days - days_ago) * 86_400, abs=60)


def test_a3_half_a_renewal_is_not_taken(tmp_path: Path) -> None:
    tls, other = tls_of(tmp_path, "router", "router-0"), tls_of(tmp_path, "audit", "audit-0")
    source = TlsSource(tls)
    before = source.current()
    shutil.copy(other.key, tls.key)
    assert source.current() is before
    Path(tls.ca).rename(tmp_path / "away")
    assert source.current() is before
    (tmp_path / "away").rename(tls.ca)
    shutil.copy(other.cert, tls.cert)
    assert source.current().cert == Path(other.cert).read_bytes()
