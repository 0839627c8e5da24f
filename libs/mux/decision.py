"""One decision asked of a service, with its fallback, the same shape for all; and what a service is only told."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable
from typing import Any, TypeVar

from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux.client import MuxClient
from libs.mux.core import Semantics
from libs.mux.endings import OnReply
from libs.telemetry import get_logger, place_of

log = get_logger(__name__)
T = TypeVar("T")
# Failures that say nothing about the question, only that nobody decided it.
AWAY = frozenset(
    {
        Reason.DEPENDENCY_UNAVAILABLE,
        Reason.DEADLINE_EXCEEDED,
        Reason.REJECTED_QUEUE_FULL,
        Reason.NOT_OWNER,
        Reason.INTERNAL,
    }
)


def start_decision(
    mux: MuxClient,
    item: Any,
    *,
    deadline: Deadline,
    traceparent: str,
    read: Callable[[Any], T],
    fallback: Callable[[], T],
    wait: bool = False,
    home: MuxClient | None = None,
    hear: Callable[[Any], None] = lambda reply: None,
) -> Future[T]:
    """Ask, without a task: the future gets what `read` makes of the reply, or what `fallback` gives if nobody decided.

    Both may raise `WeirError`, which is the decision then. A reply that `read` cannot read decides nothing. Without a
    stream the fallback is used at once; with `wait` the question waits for a stream inside its deadline first. Where
    `mux` carries for `home` (`libs.mux.carrier`), the question is repeated there when it came to the wrong replica.
    `hear` is called once, before `read` and also when nobody waits for it any more, with the reply, or with None when
    none comes.
    """
    future: Future[T] = asyncio.get_running_loop().create_future()

    def settle(decide: Callable[[], T]) -> None:
        if future.done():
            return
        try:
            future.set_result(decide())
        except Exception as error:  # whatever it is, whoever waits hears of it
            future.set_exception(error)

    def failed(error: WeirError, asked: MuxClient) -> None:
        if error.reason is Reason.NOT_OWNER and home is not None and asked is not home and home.connected:
            ask(home)
            return
        over(None)
        if error.reason in AWAY:
            settle(fallback)
        elif not future.done():
            future.set_exception(error)

    def over(reply: Any) -> None:
        try:
            hear(reply)
        except Exception as error:
            log.error("reply_not_heard", error=type(error).__name__, where=place_of(error))

    def understood(reply: Any) -> T:
        try:
            return read(reply)
        except WeirError:
            raise
        except Exception as error:
            log.error("reply_not_read", error=type(error).__name__, where=place_of(error))
            return fallback()

    def ask(asked: MuxClient) -> None:
        def on_reply(reply: Any, error: WeirError | None) -> None:
            if error is not None:
                failed(error, asked)
                return
            over(reply)
            settle(lambda: understood(reply))

        try:
            asked.call_nowait(
                item, deadline=deadline, semantics=Semantics.RETRY, on_reply=on_reply, traceparent=traceparent
            )
        except WeirError as error:
            failed(error, asked)

    if mux.connected or wait:
        ask(mux)
    else:
        over(None)
        settle(fallback)
    return future


def _unheard(reply: object, error: WeirError | None) -> None:
    """Nobody asks what became of it."""


def tell(
    mux: MuxClient,
    item: Any,
    *,
    deadline: Deadline,
    on_reply: OnReply = _unheard,
    semantics: Semantics = Semantics.RETRY,
    traceparent: str = "",
    lazy: bool = False,
) -> None:
    """Say what nobody waits for. What cannot even be queued is over at once: `on_reply` hears the error."""
    try:
        mux.call_nowait(
            item, deadline=deadline, semantics=semantics, on_reply=on_reply, traceparent=traceparent, lazy=lazy
        )
    except WeirError as error:
        on_reply(None, error)
