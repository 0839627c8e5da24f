"""How a call of the client ends: once, with a reply or an error, in a future or a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from libs.errors import Reason, WeirError
from libs.mux.core import Call, Outcome
from libs.telemetry import get_logger

log = get_logger(__name__)

MuxCall = Call[Any]
"""A call under way; opaque to callers, for `MuxClient.cancel`."""

OnReply = Callable[[Any, WeirError | None], None]
"""Called once, on the event loop, with the reply item or with the error (the other is None). Must not block."""

_FAILURES: dict[Outcome, tuple[Reason, str]] = {
    Outcome.DEADLINE: (Reason.DEADLINE_EXCEEDED, "the deadline passed before {} answered"),
    Outcome.UNAVAILABLE: (Reason.DEPENDENCY_UNAVAILABLE, "{} could not be reached within the deadline"),
    Outcome.LOST: (Reason.DEPENDENCY_UNAVAILABLE, "the stream to {} was lost"),
    Outcome.CLOSED: (Reason.DEPENDENCY_UNAVAILABLE, "the client of {} is closed"),
}


def failure(outcome: Outcome, domain: str) -> WeirError:
    """The error of a call that ended without its peer's answer; `domain` is the service's name."""
    reason, message = _FAILURES[outcome]
    return WeirError(reason, message.format(domain), limit=domain)


def settle(call: MuxCall, reply: Any, error: WeirError | None, domain: str) -> None:
    """Tell whoever waits for the call."""
    waiter = call.waiter
    if isinstance(waiter, asyncio.Future):
        if waiter.done():  # its task was cancelled in this very tick
            return
        if error is None:
            waiter.set_result(reply)
        else:
            waiter.set_exception(error)
        return
    try:
        waiter(None if error is not None else reply, error)
    except Exception as fault:  # one caller's callback must not end the other calls
        log.error("mux_callback_failed", domain=domain, exc_info=fault)
