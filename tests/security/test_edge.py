"""What a stranger can do at the edge (A4 to A7, A10), with a real Envoy; each test comes from addresses of its own."""

import asyncio
import contextlib
import http.client
import os
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import grpc
import httpx2
import psutil
import pytest
import pytest_asyncio
from weir.inference.v1 import inference_pb2_grpc

from libs.clock import SystemClock
from libs.config import MAX_BODY_BYTES, ServiceSettings
from libs.service import serve
from libs.service.health import Health
from libs.service.pages import serve_pages
from libs.supervisor.control import SOCKET, ControlServer
from libs.supervisor.logs import LogSink
from libs.supervisor.spec import LogLimits, SupervisorSpec
from libs.supervisor.supervisor import Supervisor
from services.cli.mesh.plan import build
from services.cli.mesh.site import ROOT, load_topology
from services.cli.mesh.sites import Laptop
from services.controlplane.policy.config import Certificate, EdgeConfig
from services.controlplane.policy.edge import edge_resources
from services.controlplane.policy.names import LISTENER
from services.gateway.config import Settings as GatewaySettings
from services.predictor.config import Settings as PredictorSettings
from tests.support.certificates import tls_of
from tests.support.fixtures.edge_fixtures import Edge, running_edge
from tests.support.spans import Collector
from tests.support.upstreams import FakeGateway, echo, event

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
GOOD = {"authorization": "Bearer good"}
CONNECTIONS, PARTS, RATE = 64, 16, 5
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def collector(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Collector, str, Path]]:
    """A trace collector, its address, and the folder of its mesh."""
    directory = tmp_path_factory.mktemp("edge")
    found = Collector()
    server, address = await found.serve(tls_of(directory / "pki", "collector"))
    yield found, address, directory
    await server.stop(None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(collector: tuple[Collector, str, Path]) -> AsyncIterator[Edge]:
    """An edge whose limits a test can reach."""
    _, address, directory = collector
    async with running_edge(
        directory,
        trace_endpoint=address,
        max_connections=CONNECTIONS,
        source_parts=PARTS,
        source_requests_per_second=RATE,
        max_body_bytes=64 * 1024,
        header_seconds=1,
        request_seconds=2,
        idle_seconds=2,
    ) as found:
        yield found


@pytest.fixture(autouse=True)
def fresh(edge: Edge) -> None:
    """Each test begins with empty records."""
    edge.upstreams.gateway.chat = echo
    edge.upstreams.gateway.seen.clear()
    edge.upstreams.auth.seen.clear()


def client(edge: Edge, source: str, url: str = "", **more: Any) -> httpx2.AsyncClient:
    """An HTTP client with a good key that comes from this address."""
    context = ssl.create_default_context(cafile=str(edge.ca))
    return httpx2.AsyncClient(
        base_url=url or edge.url,
        headers=GOOD,
        timeout=20,
        trust_env=False,
        transport=httpx2.AsyncHTTPTransport(local_address=source, verify=context),
        **more,
    )


async def connection(edge: Edge, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the plain listener."""
    return await asyncio.open_connection("127.0.0.1", edge.http_port, local_addr=(source, 0))


async def answered(edge: Edge, source: str, text: bytes) -> bytes:
    """All that the edge says to these bytes until it closes; empty when it says nothing."""
    reader, writer = await connection(edge, source)
    with contextlib.suppress(ConnectionError):
        writer.write(text)
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


# A4 --------------------------------------------------------------------------------------------------------------


def listeners(**fields: Any) -> Mapping[str, Any]:
    return edge_resources(EdgeConfig(**fields), "")[LISTENER]


async def test_a4_plaintext_is_served_only_where_a_port_is_named_for_it() -> None:
    certificate = Certificate("/p/edge.pem", "/p/edge.key")
    assert list(listeners(certificate=certificate)) == ["edge-https"]
    assert not listeners()
    everything = listeners(certificate=certificate, http_port=1, admin_port=2)
    encrypted = {
        name: all("transport_socket" in chain for chain in found["filter_chains"]) for name, found in everything.items()
    }
    assert encrypted == {"edge-https": True, "edge-http": False, "edge-admin": True}


async def test_a4_the_admin_api_is_not_on_the_public_listeners_nor_the_other_way_round(edge: Edge) -> None:
    async def statuses(path: str) -> list[int]:
        found = []
        for url in (edge.url, f"https://127.0.0.1:{edge.https_port}", f"https://127.0.0.1:{edge.admin_port}"):
            async with client(edge, "127.0.0.9", url) as http:
                found.append((await http.get(path)).status_code)
        return found

    # The registry of the test answers 403.
    assert await statuses("/admin/v1/resources/Limits/acme/*") == [404, 404, 403]
    assert await statuses("/v1/models/weir-fast") == [200, 200, 404]
    called = []
    for port in (edge.https_port, edge.admin_port):
        async with edge.channel(port) as channel:
            call = channel.unary_unary("/weir.registry.v1.RegistryService/Apply")
            try:
                await call(b"", metadata=tuple(GOOD.items()), timeout=10)
                called.append(grpc.StatusCode.OK)
            except grpc.aio.AioRpcError as error:
                called.append(error.code())
    assert called == [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OK]


# A5 --------------------------------------------------------------------------------------------------------------


async def test_a5_a_source_that_takes_all_the_connections_it_can_locks_out_no_other(edge: Edge) -> None:
    async def asks(source: str) -> bool:
        """Whether a connection from there is served; it stays open."""
        reader, writer = await connection(edge, source)
        opened.append(writer)
        try:
            writer.write(b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n")
            async with asyncio.timeout(10):
                return b"HTTP/1.1" in await reader.readline()
        except ConnectionError:
            return False

    opened: list[asyncio.StreamWriter] = []
    try:
        held = [await asks("127.0.0.1") for _ in range(CONNECTIONS + PARTS)]
        assert held.count(True) == CONNECTIONS // PARTS
        assert await asks("127.0.0.2")
        assert not await asks("127.0.0.1")
    finally:
        for writer in opened:
            writer.close()


async def test_a5_requests_of_one_source_are_limited_before_anybody_is_asked_who_it_is(edge: Edge) -> None:
    async with client(edge, "127.0.0.3") as http:
        strangers = {"authorization": "Bearer guess"}
        answers = [await http.post(CHAT, json={}, headers=strangers) for _ in range(4 * RATE)]
    codes = [answer.status_code for answer in answers]
    assert set(codes) == {401, 429}
    assert codes.count(401) == len(edge.upstreams.auth.seen) >= 2 * RATE
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.json()["error"]["code"] == "rejected_overload"
    assert "address" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) > 0
    async with client(edge, "127.0.0.4") as http:
        assert (await http.post(CHAT, json={})).status_code == 200


async def test_a5_a_connection_without_a_request_ends_soon_and_a_silent_stream_does_not(edge: Edge) -> None:
    idle_ended = asyncio.Event()

    async def chat(request: Any, context: Any) -> Any:
        yield event("0")
        await idle_ended.wait()
        yield event("[DONE]")

    edge.upstreams.gateway.chat = chat
    async with client(edge, "127.0.0.5") as http, http.stream("POST", CHAT, json={}) as response:
        chunks = response.aiter_raw()
        await anext(chunks)
        # Opened after the stream fell silent, so the stream has been silent for longer when this one ends.
        assert await answered(edge, "127.0.0.6", b"") == b""
        idle_ended.set()
        assert [chunk async for chunk in chunks] == [b"data: [DONE]\n\n"]


@pytest.mark.parametrize(
    ("begun", "source", "why"),
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n", "127.0.0.7", "request_header_timeout"),
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer good\r\n"
            b"content-type: application/json\r\ncontent-length: 9\r\n\r\n{",
            "127.0.0.8",
            "request_overall_timeout",
        ),
    ],
    ids=["headers", "body"],
)
async def test_a5_a_request_that_does_not_arrive_is_given_up(edge: Edge, begun: bytes, source: str, why: str) -> None:
    answer = await answered(edge, source, begun)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"deadline_exceeded"' in answer
    request_id = answer.split(b"x-request-id: ")[1].split(b"\r\n")[0].decode()
    assert (await edge.envoy.access_line(request_id))["details"] == why


async def test_a5_grpc_messages_have_the_limit_of_http_bodies() -> None:
    settings = GatewaySettings(service="gateway", instance="gateway-test", max_message_bytes=1000)
    assert EdgeConfig().max_body_bytes == MAX_BODY_BYTES
    assert MAX_BODY_BYTES <= GatewaySettings(service="gateway", instance="g").max_message_bytes <= MAX_BODY_BYTES + 4096
    predictor = PredictorSettings(service="predictor", instance="p").max_message_bytes
    assert EdgeConfig().max_prediction_bytes <= predictor <= EdgeConfig().max_prediction_bytes + 4096

    class Service:
        def register(self, server: grpc.aio.Server) -> list[str]:
            inference_pb2_grpc.add_InferenceServiceServicer_to_server(FakeGateway(), server)
            return []

        async def run(self, ready: Any) -> None:
            await asyncio.Event().wait()

        async def drain(self) -> None: ...

        def endpoint_extra(self) -> dict[str, Any]:
            return {}

    async with (
        serve(Service(), settings, deadline_optional=("/weir.",)) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        call = channel.unary_unary("/weir.inference.v1.InferenceService/CountTokens")
        assert isinstance(await call(b"", timeout=10), bytes)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(bytes(2000), timeout=10)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a5_a_header_has_one_spelling(edge: Edge) -> None:
    async with client(edge, "127.0.0.10") as http:
        assert (await http.get("/v1/models", headers={"x_weir_tenant": "globex"})).status_code == 400
    assert not edge.upstreams.auth.seen


# A6 --------------------------------------------------------------------------------------------------------------


async def test_a6_a_caller_chooses_neither_trace_nor_sampling_nor_request_id(
    edge: Edge, collector: tuple[Collector, str, Path]
) -> None:
    brought = {
        "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
        "tracestate": "weir=chosen",
        "baggage": "weir=chosen",
        "b3": f"{TRACE}-b7ad6b7169203331-1",
        "x-b3-traceid": TRACE,
        "x-client-trace-id": TRACE,
        "x-request-id": "chosen",
    }
    async with client(edge, "127.0.0.11") as http:
        stranger = await http.post(CHAT, json={}, headers={**brought, "authorization": "Bearer guess"})
        assert stranger.status_code == 401
        assert (await http.post(CHAT, json={}, headers=brought)).status_code == 200
    (seen,) = edge.upstreams.gateway.seen
    words = [f"{name}: {value}" for name, value in seen.items()]
    assert not [word for word in words if TRACE in word or "chosen" in word]
    spans, _, _ = collector
    # Spans go out in their order, so the stranger's are there too.
    await spans.has(seen["traceparent"].split("-")[1])
    assert TRACE not in spans.traces


# A7 --------------------------------------------------------------------------------------------------------------


async def test_a7_envoys_admin_is_a_socket_of_its_user_and_no_port(edge: Edge) -> None:
    found = edge.envoy.admin_socket.stat()
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    ports = {each.laddr.port for each in edge.envoy.process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    assert ports == set((await edge.envoy.listeners()).values())
    assert "edge-https" in await edge.envoy.admin("/listeners")


async def test_a7_the_status_port_tells_readiness_and_figures_and_does_nothing(edge: Edge) -> None:
    port = (await edge.envoy.listeners())["edge-status"]

    def ask(method: str, path: str) -> tuple[int, bytes]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as asked:
            asked.request(method, path)
            answer = asked.getresponse()
            return answer.status, answer.read()

    assert (await asyncio.to_thread(ask, "GET", "/ready"))[0] == 200
    status, figures = await asyncio.to_thread(ask, "GET", "/stats/prometheus")
    assert status == 200
    assert b"envoy_cluster_membership_total" in figures
    refused = [
        ("POST", "/quitquitquit"),
        ("POST", "/ready"),
        ("POST", "/runtime_modify?x=1"),
        ("GET", "/config_dump"),
        ("GET", "/certs"),
        ("GET", "/stats"),
        ("GET", "/ready/../config_dump"),
    ]
    assert {(await asyncio.to_thread(ask, *each))[0] for each in refused} == {404}


async def test_a7_the_mesh_keeps_the_socket_in_a_folder_of_its_user() -> None:
    site = Laptop(root=ROOT, state=Path("/state"), port_base=18000, interpreter="python", etcd="etcd", envoy="envoy")
    given: dict[str, Any] = {}

    def envoy(**fields: Any) -> str:
        given.update(fields)
        return ""

    plan = build(load_topology(ROOT), site, envoy)
    (spec,) = (each for each in plan.processes if each.name == "envoy")
    # Folders of a plan are made with mode 0700.
    assert Path(spec.cwd) in plan.folders
    assert "/" not in given.get("admin_socket", "admin.sock")


async def test_a7_metrics_are_on_loopback_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libs.service.pages._STOP_SECONDS", 0.02)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ServiceSettings(service="gateway", instance="g", host="0.0.0.0", metrics_port=port)
    server = serve_pages(settings, Health())
    try:
        assert server.server_address == ("127.0.0.1", port)
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


# A10 -------------------------------------------------------------------------------------------------------------


async def test_a10_the_supervisors_socket_is_never_anybody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "chmod", lambda *_: None)  # what comes after `bind` comes too late
    sink = LogSink(tmp_path, LogLimits())
    spec = SupervisorSpec(state_dir=str(tmp_path), processes=())
    supervisor = Supervisor(spec, sink=sink, clock=SystemClock(), rng=Random(1))
    server = ControlServer(supervisor, tmp_path)
    before = os.umask(0)
    try:
        await server.start()
        assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600
    finally:
        os.umask(before)
        await server.close()
        sink.close()
