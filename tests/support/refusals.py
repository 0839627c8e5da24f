"""Streams that say Hello first and may be refused before it is heard."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc

from libs.errors import Reason, from_rpc_error


async def opened(start: Callable[[], Any], hello: Any) -> tuple[Any, Any]:
    """A stream that was started, said hello on, and its first answer. A write that meets the end of a stream takes its
    status from whoever reads (grpc/aio/_call.py): that one is asked again.

    :raises grpc.aio.AioRpcError: it is refused.
    """
    while True:
        call = start()
        try:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(hello)
            return call, await call.read()
        except grpc.aio.AioRpcError as error:
            unheard = error.code() is grpc.StatusCode.INTERNAL
            if not unheard or from_rpc_error(error).reason is not Reason.DEPENDENCY_UNAVAILABLE:
                raise
