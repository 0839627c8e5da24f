"""Errors, deadlines and cancellation through both ends' interceptors, over every RPC arity, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from libs.errors import Reason, WeirError, from_rpc_error
from libs.rpc import make_channel, make_server
from libs.rpc.server import bind

REFUSAL = WeirError(Reason.QUOTA_TOKENS, "too many tokens", limit="tokens_per_minute", retry_after=2.5)
SECRET = "the user's words"
ARITIES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
STYLES = (*ARITIES, "unary_stream_write", "stream_stream_write")
Act = Callable[[grpc.aio.ServicerContext], Awaitable[None]]


class Probe:
    """A server with one method per arity and, for response streams, per style. Each runs `act` between receiving and
    its second response."""

    def __init__(self) -> None:
        self.act: Act = _nothing
        self.ended: asyncio.Queue[str] = asyncio.Queue()

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        return {
            "unary_unary": grpc.unary_unary_rpc_method_handler(self._unary_unary),
            "stream_unary": grpc.stream_unary_rpc_method_handler(self._stream_unary),
            "unary_stream": grpc.unary_stream_rpc_method_handler(self._yields),
            "stream_stream": grpc.stream_stream_rpc_method_handler(self._yields),
            "unary_stream_write": grpc.unary_stream_rpc_method_handler(self._writes),
            "stream_stream_write": grpc.stream_stream_rpc_method_handler(self._writes),
        }

    async def _unary_unary(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await self.act(context)
        return request

    async def _stream_unary(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        joined = b"".join([part async for part in requests])
        await self.act(context)
        return joined

    async def _yields(self, request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await self.act(context)
            yield b"second"
        finally:
            self.ended.put_nowait("yields")

    async def _writes(self, request: Any, context: grpc.aio.ServicerContext) -> None:
        try:
            await context.write(b"first")
            await self.act(context)
            await context.write(b"second")
        finally:
            self.ended.put_nowait("writes")


async def _nothing(context: grpc.aio.ServicerContext) -> None:
    """Succeed."""


async def _refuse(context: grpc.aio.ServicerContext) -> None:
    raise REFUSAL


async def _break(context: grpc.aio.ServicerContext) -> None:
    raise ValueError(SECRET)


async def _abort(context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.DATA_LOSS, "as the servicer said")


@contextlib.asynccontextmanager
async def serving(probe: Probe, **options: Any) -> AsyncIterator[int]:
    server = make_server(**options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("weir.test.Probe", probe.handlers()),))
    port = bind(server, "127.0.0.1:0", tls=None)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(grace=None)


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
async def port(probe: Probe) -> AsyncIterator[int]:
    async with serving(probe) as bound:
        yield bound


@pytest.fixture
async def translated(port: int) -> AsyncIterator[grpc.aio.Channel]:
    async with make_channel(f"127.0.0.1:{port}", tls=None, translate_errors=True) as channel:
        yield channel


@pytest.fixture
async def plain(port: int) -> AsyncIterator[grpc.aio.Channel]:
    async with make_channel(f"127.0.0.1:{port}", tls=None) as channel:
        yield channel


async def _requests() -> AsyncIterator[bytes]:
    yield b"a"
    yield b"b"


async def call(channel: grpc.aio.Channel, style: str, seconds: float | None = 10.0) -> list[bytes]:
    """Call the method and return its responses."""
    arity = style.removesuffix("_write")
    request: Any = _requests() if arity.startswith("stream") else b"ab"
    made = getattr(channel, arity)(f"/weir.test.Probe/{style}")(request, timeout=seconds)
    if arity.endswith("unary"):
        return [await made]
    return [response async for response in made]


@pytest.mark.parametrize("style", STYLES)
async def test_what_succeeds_passes_unchanged(translated: grpc.aio.Channel, style: str) -> None:
    expected = [b"ab"] if style.endswith("unary") else [b"first", b"second"]
    assert await call(translated, style) == expected


@pytest.mark.parametrize("style", STYLES)
async def test_a_weir_error_arrives_whole(probe: Probe, translated: grpc.aio.Channel, style: str) -> None:
    probe.act = _refuse
    with pytest.raises(WeirError) as caught:
        await call(translated, style)
    error = caught.value
    assert (error.reason, error.message, error.limit, error.retry_after) == (
        REFUSAL.reason,
        REFUSAL.message,
        REFUSAL.limit,
        REFUSAL.retry_after,
    )


@pytest.mark.parametrize("style", STYLES)
async def test_foreign_clients_get_a_rich_status(probe: Probe, plain: grpc.aio.Channel, style: str) -> None:
    probe.act = _refuse
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(plain, style)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == "too many tokens"
    status = await rpc_status.aio.from_call(_Ended(caught.value))
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status is not None
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (info.reason, info.domain, info.metadata["limit"]) == ("QUOTA_TOKENS", "weir", "tokens_per_minute")
    assert (retry.retry_delay.seconds, retry.retry_delay.nanos) == (2, 500_000_000)


class _Ended:
    """An AioRpcError in the shape that grpc_status reads."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self._error = error

    async def code(self) -> grpc.StatusCode:
        return self._error.code()

    async def details(self) -> str | None:
        return self._error.details()

    async def trailing_metadata(self) -> Any:
        return self._error.trailing_metadata()


@pytest.mark.parametrize("style", STYLES)
async def test_a_fault_is_internal_without_its_text(
    probe: Probe, translated: grpc.aio.Channel, caplog: pytest.LogCaptureFixture, style: str
) -> None:
    probe.act = _break
    with pytest.raises(WeirError) as caught:
        await call(translated, style)
    assert caught.value.reason is Reason.INTERNAL
    assert SECRET not in caught.value.message
    (record,) = [record for record in caplog.records if record.getMessage() == "rpc_failed"]
    fields = record.__dict__["fields"]
    assert (fields["method"], fields["error"]) == (f"/weir.test.Probe/{style}", "ValueError")
    assert "in _break" in fields["where"]
    assert SECRET not in str(fields)
    assert record.exc_info is None


@pytest.mark.parametrize("style", STYLES)
async def test_an_abort_passes(probe: Probe, translated: grpc.aio.Channel, style: str) -> None:
    probe.act = _abort
    with pytest.raises(WeirError) as caught:
        await call(translated, style)
    assert caught.value.message == "as the servicer said"


@pytest.mark.parametrize("style", ["unary_unary", "unary_stream", "unary_stream_write"])
async def test_one_request_needs_a_deadline(plain: grpc.aio.Channel, style: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(plain, style, seconds=None)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "a deadline is required"


@pytest.mark.parametrize("style", ["stream_unary", "stream_stream", "stream_stream_write"])
async def test_request_streams_may_live_for_ever(plain: grpc.aio.Channel, style: str) -> None:
    assert await call(plain, style, seconds=None)


async def test_the_deadline_is_optional_where_the_servicer_has_a_default(probe: Probe) -> None:
    async with (
        serving(probe, deadline_optional=("/weir.test.",)) as port,
        make_channel(f"127.0.0.1:{port}", tls=None) as channel,
    ):
        assert await call(channel, "unary_unary", seconds=None) == [b"ab"]


@pytest.mark.parametrize("style", ["unary_unary", "stream_unary"])
async def test_a_caller_inside_the_mesh_must_say_how_long_it_waits(
    probe: Probe, translated: grpc.aio.Channel, style: str
) -> None:
    with pytest.raises(WeirError) as caught:
        await call(translated, style, seconds=None)
    assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, "timeout")


@pytest.mark.parametrize("style", STYLES)
async def test_a_passed_deadline_is_an_error_of_ours(probe: Probe, translated: grpc.aio.Channel, style: str) -> None:
    async def hang(context: grpc.aio.ServicerContext) -> None:
        await asyncio.Event().wait()

    probe.act = hang
    with pytest.raises(WeirError) as caught:
        await call(translated, style, seconds=0.2)
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED


async def test_work_that_arrives_too_late_is_refused() -> None:
    from libs.rpc.interceptors import ErrorInterceptor

    class Late:
        """A context whose time is up on arrival; over a real connection the call would end before it got here."""

        def time_remaining(self) -> float:
            return -0.001

        def trailing_metadata(self) -> tuple[()]:
            return ()

        async def abort(self, code: grpc.StatusCode, details: str, metadata: Any) -> None:
            raise grpc.aio.AbortError(code, details)

    handler = grpc.unary_unary_rpc_method_handler(Probe()._unary_unary)

    async def found(details: Any) -> grpc.RpcMethodHandler:
        return handler

    class Details:
        method = "/weir.test.Probe/unary_unary"

    wrapped = await ErrorInterceptor().intercept_service(found, Details())  # type: ignore[arg-type]
    with pytest.raises(grpc.aio.AbortError) as caught:
        await wrapped.unary_unary(b"", Late())
    assert caught.value.args[0] == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("style", ["unary_stream", "stream_stream", "unary_stream_write", "stream_stream_write"])
async def test_a_client_that_leaves_cancels_the_servicer(
    probe: Probe, translated: grpc.aio.Channel, style: str
) -> None:
    async def hang(context: grpc.aio.ServicerContext) -> None:
        await asyncio.Event().wait()

    probe.act = hang
    arity = style.removesuffix("_write")
    request: Any = _requests() if arity.startswith("stream") else b"ab"
    made = getattr(translated, arity)(f"/weir.test.Probe/{style}")(request, timeout=10)
    assert await anext(aiter(made)) == b"first"
    made.cancel()
    assert await asyncio.wait_for(probe.ended.get(), 10) in ("yields", "writes")


async def test_a_dead_peer_is_an_unavailable_dependency() -> None:
    async with serving(Probe()) as port:
        pass
    async with make_channel(f"127.0.0.1:{port}", tls=None, translate_errors=True) as channel:
        with pytest.raises(WeirError) as caught:
            await call(channel, "unary_unary", seconds=5)
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE


async def test_an_unknown_method_is_unimplemented(translated: grpc.aio.Channel) -> None:
    with pytest.raises(WeirError) as caught:
        await translated.unary_unary("/weir.test.Probe/Nothing")(b"", timeout=5)
    assert caught.value.reason is Reason.UNIMPLEMENTED


async def test_a_long_message_still_fits_the_trailers(probe: Probe, translated: grpc.aio.Channel) -> None:
    async def refuse(context: grpc.aio.ServicerContext) -> None:
        raise WeirError(Reason.INVALID_REQUEST, "ü" * 20_000, limit="x" * 20_000)

    probe.act = refuse
    with pytest.raises(WeirError) as caught:
        await call(translated, "unary_unary")
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.message.startswith("üüü")


async def test_a_refusal_keeps_the_trailers_that_were_set(probe: Probe, translated: grpc.aio.Channel) -> None:
    """The limits that a servicer tells, for one."""

    async def refuse(context: grpc.aio.ServicerContext) -> None:
        context.set_trailing_metadata((("x-limit", "5"),))
        raise WeirError(Reason.QUOTA_TOKENS, "none left")

    probe.act = refuse
    with pytest.raises(WeirError) as caught:
        await call(translated, "unary_unary", seconds=5)
    assert caught.value.reason is Reason.QUOTA_TOKENS
    failure = caught.value.__cause__
    assert isinstance(failure, grpc.aio.AioRpcError)
    assert dict(failure.trailing_metadata() or ())["x-limit"] == "5"


async def test_a_status_that_a_failed_write_has_hidden_is_one_to_ask_for_again() -> None:
    """As grpc.aio leaves a stream that ended while it was written on: what it says of it must be known here."""
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        call: Any = channel.stream_stream("/weir.test.Probe/Any")(wait_for_ready=True)
        call._cython_call.set_internal_error("Failed grpc_call_start_batch")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert from_rpc_error(caught.value).reason is Reason.DEPENDENCY_UNAVAILABLE


@pytest.mark.parametrize("style", ["unary_unary", "unary_stream"])
async def test_a_message_beyond_a_servers_bound_is_one_of_our_errors(probe: Probe, style: str) -> None:
    """gRPC refuses it by itself, in words of its own."""
    async with serving(probe, max_message_bytes=1) as port, make_channel(f"127.0.0.1:{port}", tls=None) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, style)
    error = from_rpc_error(caught.value)
    assert (error.reason, error.limit) == (Reason.PAYLOAD_TOO_LARGE, "max_message_bytes")
    assert "(2 vs. 1)" in error.message
