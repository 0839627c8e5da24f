"""One server interceptor and one set of client interceptors, each covering all four RPC arities.

Server: `WeirError` becomes a rich status; anything else unexpected becomes INTERNAL without its text (it may hold user
data) and is logged by type and place; unary calls without a deadline are refused, because a caller without one holds
resources for ever; and so is whoever may not call the method. Client: a failed call raises the `WeirError` it carries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc_status import rpc_status

from libs.errors import Reason, WeirError, from_rpc_error
from libs.rpc.identity import MayCall, require_caller
from libs.telemetry import get_logger, place_of

log = get_logger(__name__)

Check = Callable[[grpc.aio.ServicerContext], None]
"""Raises for a call that is not let in."""
# Health and reflection follow their own specs, which know no deadline.
_ALWAYS_OPTIONAL = ("/grpc.health.", "/grpc.reflection.")
_INTERNAL = WeirError(Reason.INTERNAL, "internal error; the trace id finds it")


async def _abort(context: grpc.aio.ServicerContext, error: WeirError) -> None:
    status = rpc_status.to_status(error.to_status())
    # `abort` replaces what the servicer has put into the trailers (its limits, say).
    trailers = (*(context.trailing_metadata() or ()), *status.trailing_metadata)
    try:
        await context.abort(status.code, status.details, trailers)
    except grpc.aio.AbortError:
        raise
    except Exception:  # a batch that failed in gRPC's core, which has no public type
        if not context.done():
            raise
        # The caller went away while the status was on its way: nobody is left to tell.


async def _fail(context: grpc.aio.ServicerContext, error: Exception, method: str) -> None:
    if isinstance(error, WeirError):
        await _abort(context, error)
    elif isinstance(error, grpc.aio.AbortError):
        raise error
    else:
        log.error("rpc_failed", method=method, error=type(error).__name__, where=place_of(error))
        await _abort(context, _INTERNAL)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """See the module docstring. Wrapped handlers are cached per method, so a call pays one dictionary look-up."""

    def __init__(
        self,
        *,
        deadline_optional: tuple[str, ...] = (),
        may_call: MayCall | None = None,
    ) -> None:
        """:param may_call: None: whoever connects may call everything."""
        self._may_call = may_call
        self._optional = _ALWAYS_OPTIONAL + deadline_optional
        self._wrapped: dict[str, tuple[grpc.RpcMethodHandler, grpc.RpcMethodHandler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Wrap the method's handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method
        cached = self._wrapped.get(method)
        if cached is None or cached[0] is not handler:
            cached = self._wrapped[method] = (handler, self._wrap(handler, method))
        return cached[1]

    def _wrap(self, handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
        needs_deadline = not handler.request_streaming and not method.startswith(self._optional)
        codecs = (handler.request_deserializer, handler.response_serializer)

        def check(context: grpc.aio.ServicerContext) -> None:
            if self._may_call is not None:
                require_caller(context, method, self._may_call)
            if needs_deadline:
                _check_deadline(context)

        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(_unary(handler.unary_unary, method, check), *codecs)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(_unary(handler.stream_unary, method, check), *codecs)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(_stream(handler.unary_stream, method, check), *codecs)
        return grpc.stream_stream_rpc_method_handler(_stream(handler.stream_stream, method, check), *codecs)


def _check_deadline(context: grpc.aio.ServicerContext) -> None:
    remaining = context.time_remaining()
    if remaining is None:
        raise WeirError(Reason.INVALID_REQUEST, "a deadline is required", limit="grpc-timeout")
    if remaining <= 0:
        raise WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed before the call arrived")


def _unary(behaviour: Callable[..., Any], method: str, check: Check) -> Callable[..., Any]:
    async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            check(context)
            return await behaviour(request, context)
        except Exception as error:  # the boundary: every failure must become a status
            await _fail(context, error, method)

    return call


def _stream(behaviour: Callable[..., Any], method: str, check: Check) -> Callable[..., Any]:
    async def generate(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        try:
            check(context)
            async for response in behaviour(request, context):
                yield response
        except Exception as error:  # the boundary: every failure must become a status
            await _fail(context, error, method)

    async def write(request: Any, context: grpc.aio.ServicerContext) -> None:
        try:
            check(context)
            await behaviour(request, context)
        except Exception as error:  # the boundary: every failure must become a status
            await _fail(context, error, method)

    # grpc.aio offers two styles for response streams; keep the servicer's, since an extra generator costs per message.
    return write if asyncio.iscoroutinefunction(behaviour) else generate


class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        _require_timeout(client_call_details)
        return await _answered(await continuation(client_call_details, request))


class _StreamUnary(grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        _require_timeout(client_call_details)
        return await _answered(await continuation(client_call_details, request_iterator))


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return _iterate(await continuation(client_call_details, request))


class _StreamStream(grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return _iterate(await continuation(client_call_details, request_iterator))


def _require_timeout(details: Any) -> None:
    if details.timeout is None:
        raise WeirError(Reason.INVALID_REQUEST, "a call inside the mesh needs a timeout", limit="timeout")


async def _answered(call: Any) -> Any:
    """The call itself, once it has its response: grpc.aio takes no bare response from a stream-unary interceptor."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    return call


async def _iterate(call: Any) -> AsyncIterator[Any]:
    try:
        async for response in call:
            yield response
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


def client_interceptors() -> list[grpc.aio.ClientInterceptor]:
    """One per arity, as grpc.aio wants them."""
    return [_UnaryUnary(), _StreamUnary(), _UnaryStream(), _StreamStream()]
