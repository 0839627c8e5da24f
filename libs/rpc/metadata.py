"""Reading request metadata."""

from __future__ import annotations

import grpc

from libs.telemetry.tracing import traceparent_or_empty


def get_metadata(context: grpc.aio.ServicerContext, name: str, default: str = "") -> str:
    """The first value of a text metadata key (lower case), or `default`."""
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return default


def traceparent_of(context: grpc.aio.ServicerContext) -> str:
    """The caller's W3C trace context; empty when there is none or it is malformed."""
    return traceparent_or_empty(get_metadata(context, "traceparent"))
