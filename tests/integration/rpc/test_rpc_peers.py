"""mTLS between processes of the mesh: who is there, who is let in, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Container
from pathlib import Path

import grpc
import pytest

from libs.config import TlsFiles
from libs.errors import Reason, WeirError
from libs.pki import issue
from libs.rpc import make_channel, make_server, peer_service, peer_spiffe
from libs.rpc.server import bind

WHO = "/weir.test.Who/Are"
ENTER = "/weir.test.Who/Enter"


def files(directory: Path, service: str) -> TlsFiles:
    issued = issue(directory, service)
    return TlsFiles(ca=issued.ca, cert=issued.cert, key=issued.key)


@contextlib.asynccontextmanager
async def serving(tls: TlsFiles | None, allowed: Container[str] = ()) -> AsyncIterator[int]:
    async def are(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return f"{peer_service(context)} {peer_spiffe(context)}".encode()

    async def enter(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return peer_service(context).encode()

    handlers = {"Are": grpc.unary_unary_rpc_method_handler(are), "Enter": grpc.unary_unary_rpc_method_handler(enter)}
    server = make_server(may_call=lambda method, caller: method == WHO or caller in allowed)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("weir.test.Who", handlers),))
    port = bind(server, "127.0.0.1:0", tls=tls)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(grace=None)


async def ask(port: int, method: str, tls: TlsFiles | None, server_name: str | None = "router.weir.internal") -> str:
    async with make_channel(f"127.0.0.1:{port}", tls=tls, server_name=server_name, translate_errors=True) as channel:
        answer: bytes = await channel.unary_unary(method)(b"", timeout=10)
        return answer.decode()


async def test_the_certificate_says_who_calls(tmp_path: Path) -> None:
    async with serving(files(tmp_path, "router")) as port:
        answer = await ask(port, WHO, files(tmp_path, "gateway"))
    assert answer == "gateway spiffe://weir.internal/sa/gateway"


async def test_only_named_services_enter(tmp_path: Path) -> None:
    async with serving(files(tmp_path, "router"), {"gateway"}) as port:
        assert await ask(port, ENTER, files(tmp_path, "gateway")) == "gateway"
        with pytest.raises(WeirError) as caught:
            await ask(port, ENTER, files(tmp_path, "worker"))
    assert caught.value.reason is Reason.PERMISSION_DENIED
    assert "worker" in caught.value.message


async def test_plaintext_is_refused_by_a_server_with_certificates(tmp_path: Path) -> None:
    async with serving(files(tmp_path, "router")) as port:
        with pytest.raises(WeirError) as caught:
            await ask(port, WHO, None)
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_a_client_without_a_certificate_is_refused(tmp_path: Path) -> None:
    tls = files(tmp_path, "router")
    credentials = grpc.ssl_channel_credentials((tmp_path / "ca.pem").read_bytes())
    options = [("grpc.ssl_target_name_override", "router.weir.internal")]
    async with (
        serving(tls) as port,
        grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(WHO)(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    stranger = files(theirs, "gateway")
    mixed = TlsFiles(ca=files(ours, "gateway").ca, cert=stranger.cert, key=stranger.key)
    async with serving(files(ours, "router")) as port:
        with pytest.raises(WeirError) as caught:
            await ask(port, WHO, mixed)
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_a_server_of_another_name_is_refused(tmp_path: Path) -> None:
    async with serving(files(tmp_path, "worker")) as port:
        with pytest.raises(WeirError) as caught:
            await ask(port, WHO, files(tmp_path, "gateway"), server_name="router.weir.internal")
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_without_certificates_everyone_is_nobody() -> None:
    async with serving(None) as port:
        assert await ask(port, WHO, None, None) == " "
        assert await ask(port, ENTER, None, None) == ""


async def test_a_taken_port_is_an_error() -> None:
    async with serving(None) as port:
        with pytest.raises(OSError, match=str(port)):
            bind(make_server(), f"127.0.0.1:{port}", tls=None)
