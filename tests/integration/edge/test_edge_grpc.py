"""The gRPC faces of the edge: native and gRPC-Web, over TLS and plain."""

import struct

import grpc
import httpx2
import pytest
from weir.inference.v1 import inference_pb2, inference_pb2_grpc

from tests.support.fixtures.edge_fixtures import Edge

pytestmark = pytest.mark.asyncio(loop_scope="module")
GOOD = (("authorization", "Bearer good"),)
COUNT = "/weir.inference.v1.InferenceService/CountTokens"


@pytest.fixture(autouse=True)
def fresh(edge: Edge) -> None:
    """Each test begins with plain upstreams and empty records."""
    edge.upstreams.gateway.seen.clear()
    edge.upstreams.gateway.deadlines.clear()
    edge.upstreams.ratelimit.seen.clear()
    edge.upstreams.ratelimit.refuse = ""


async def refused(edge: Edge, key: str = "Bearer good", path: str = COUNT) -> grpc.aio.AioRpcError:
    """The error of a unary call."""
    async with edge.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(path)(b"", metadata=(("authorization", key),), timeout=5)
    return caught.value


async def test_bidirectional_streams_pass(edge: Edge) -> None:
    async with edge.channel() as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(metadata=GOOD, timeout=5)
        for _ in range(3):
            # Each answer is read before the next question exists: nothing buffers either way.
            await call.write(inference_pb2.GenerateRequest())
            assert isinstance(await call.read(), inference_pb2.GenerateResponse)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        headers = dict(await call.initial_metadata())
    (seen,) = edge.upstreams.gateway.seen
    assert seen["x-weir-tenant"] == "acme"
    assert headers["x-request-id"] == seen["x-request-id"]
    assert headers["x-ratelimit-limit-requests"] == "60"
    (deadline,) = edge.upstreams.gateway.deadlines
    assert deadline is not None
    assert 0 < deadline <= 5


async def test_the_http_status_is_not_for_grpc_clients(edge: Edge) -> None:
    async with edge.channel() as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).CountTokens(
            inference_pb2.CountTokensRequest(), metadata=GOOD, timeout=5
        )
        assert isinstance(await call, inference_pb2.CountTokensResponse)
        assert "x-weir-http-status" not in dict(await call.initial_metadata())


async def test_denial_is_a_grpc_status(edge: Edge) -> None:
    error = await refused(edge, key="Bearer bad")
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAUTHENTICATED, "no such key")


async def test_the_rate_limit_is_a_grpc_status(edge: Edge) -> None:
    edge.upstreams.ratelimit.refuse = "requests per minute are used up"
    error = await refused(edge)
    assert (error.code(), error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "requests per minute are used up")
    told = dict([*(error.initial_metadata() or ()), *(error.trailing_metadata() or ())])
    assert told["x-weir-reason"] == "QUOTA_REQUESTS"


async def test_an_unknown_path_is_a_grpc_status(edge: Edge) -> None:
    assert (await refused(edge, path="/weir.audit.v1.AuditService/Append")).code() is grpc.StatusCode.UNIMPLEMENTED


async def test_no_gateway_is_a_grpc_status(edge: Edge) -> None:
    async def arrived(present: bool) -> None:
        await edge.known("gateway", present=present)

    async with edge.upstreams.without("gateway", arrived):
        error = await refused(edge)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "no healthy upstream"


async def test_grpc_web(edge: Edge, http: httpx2.AsyncClient) -> None:
    response = await http.post(
        COUNT,
        content=struct.pack(">BI", 0, 0),
        headers={"content-type": "application/grpc-web+proto", "x-grpc-web": "1"},
    )
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/grpc-web+proto"
    flag, length = struct.unpack(">BI", response.content[:5])
    assert (flag, length) == (0, 0)
    trailers = response.content[5:]
    assert trailers[0] == 0x80
    assert b"grpc-status:0" in trailers
