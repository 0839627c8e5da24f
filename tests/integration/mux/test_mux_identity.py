"""Who may open a multiplexed stream, under mTLS."""

from __future__ import annotations

import contextlib

import grpc
import pytest
from weir.mux.v1 import mux_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc

from libs.authority.calls import may_call
from libs.authority.identity import Identity
from libs.clock import SystemClock
from libs.config import TlsFiles
from libs.mux import Codec, MuxServer
from libs.pki import ensure_ca, issue
from libs.rpc import make_channel, make_server
from libs.rpc.server import bind
from tests.support.refusals import opened


def files(directory, service: str) -> TlsFiles:
    leaf = issue(directory, Identity(service, f"{service}-0"))
    return TlsFiles(ca=str(leaf.ca), cert=str(leaf.cert), key=str(leaf.key))


@contextlib.asynccontextmanager
async def serving(directory):
    mux = MuxServer(
        codec=Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse),
        handler=lambda item, ctx: quota_pb2.QuotaReply(),
        instance="q-0",
        clock=SystemClock(),
    )

    class Servicer(quota_pb2_grpc.QuotaServiceServicer):
        async def Session(self, request_iterator, context):  # noqa: N802
            await mux.serve(request_iterator, context)

    server = make_server(may_call=may_call)
    quota_pb2_grpc.add_QuotaServiceServicer_to_server(Servicer(), server)
    port = bind(server, "127.0.0.1:0", tls=files(directory, "ratelimit"))
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def open_as(address: str, tls: TlsFiles, calls_itself: str):
    async with make_channel(address, tls=tls, server_name="ratelimit.weir.internal") as channel:
        hello = quota_pb2.SessionRequest(hello=mux_pb2.Hello(service=calls_itself, instance=f"{calls_itself}-0"))
        _, frame = await opened(quota_pb2_grpc.QuotaServiceStub(channel).Session, hello)
        return frame.WhichOneof("frame")


async def test_the_certificate_decides_who_may_open_a_stream(tmp_path):
    ensure_ca(tmp_path)
    gateway, safety = files(tmp_path, "gateway"), files(tmp_path, "safety")
    async with serving(tmp_path) as address:
        assert await open_as(address, gateway, "gateway") == "welcome"
        for tls, name in ((safety, "gateway"), (safety, "safety"), (gateway, "ratelimit")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await open_as(address, tls, name)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
