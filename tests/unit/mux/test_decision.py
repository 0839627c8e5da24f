"""A question to a leaf service: whoever waits for it hears something, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux import start_decision, tell


class Mux:
    """A stream whose answer the test gives."""

    connected = True

    def __init__(self) -> None:
        self.answer: Callable[[Any, WeirError | None], None] | None = None

    def call_nowait(self, item: Any, *, on_reply: Callable[[Any, WeirError | None], None], **options: Any) -> None:
        self.answer = on_reply


def asked(mux: Mux, read: Callable[[Any], str], fallback: Callable[[], str]) -> Any:
    return start_decision(
        mux,  # type: ignore[arg-type]
        object(),
        deadline=Deadline(1.0),
        traceparent="",
        read=read,
        fallback=fallback,
    )


def unreadable(reply: Any) -> str:
    raise KeyError("a field that nobody expected")


def broken() -> str:
    raise ZeroDivisionError


async def test_e8_a_reply_that_cannot_be_read_decides_nothing() -> None:
    mux = Mux()
    future = asked(mux, unreadable, lambda: "fallback")
    assert mux.answer is not None
    mux.answer(object(), None)
    assert future.done()
    assert await future == "fallback"


@pytest.mark.parametrize("error", [None, WeirError(Reason.DEPENDENCY_UNAVAILABLE, "away")])
async def test_e8_whoever_waits_hears_of_a_broken_fallback(error: WeirError | None) -> None:
    mux = Mux()
    future = asked(mux, unreadable, broken)
    assert mux.answer is not None
    mux.answer(None if error else object(), error)
    assert future.done()
    with pytest.raises(ZeroDivisionError):
        await future


async def test_a_refusal_in_a_reply_is_the_decision() -> None:
    def refuse(reply: Any) -> str:
        raise WeirError(Reason.QUOTA_TOKENS, "no more")

    mux = Mux()
    future = asked(mux, refuse, broken)
    assert mux.answer is not None
    mux.answer(object(), None)
    with pytest.raises(WeirError) as raised:
        await future
    assert raised.value.reason is Reason.QUOTA_TOKENS


@pytest.mark.parametrize("error", [Reason.NOT_OWNER, Reason.DEPENDENCY_UNAVAILABLE])
async def test_a_question_that_another_stream_carried_to_the_wrong_replica_is_repeated_on_its_own(
    error: Reason,
) -> None:
    carries, home = Mux(), Mux()
    future = start_decision(
        carries,  # type: ignore[arg-type]
        object(),
        deadline=Deadline(1.0),
        traceparent="",
        read=lambda reply: "answered",
        fallback=lambda: "fallback",
        home=home,  # type: ignore[arg-type]
    )
    assert carries.answer is not None
    carries.answer(None, WeirError(error, "not here"))
    if error is Reason.NOT_OWNER:
        assert home.answer is not None
        home.answer(object(), None)
        assert await future == "answered"
    else:
        assert home.answer is None
        assert await future == "fallback"


async def test_a_replica_that_is_the_wrong_one_on_its_own_stream_too_decides_nothing() -> None:
    carries, home = Mux(), Mux()
    future = start_decision(
        carries,  # type: ignore[arg-type]
        object(),
        deadline=Deadline(1.0),
        traceparent="",
        read=lambda reply: "answered",
        fallback=lambda: "fallback",
        home=home,  # type: ignore[arg-type]
    )
    for each in (carries, home):
        assert each.answer is not None
        each.answer(None, WeirError(Reason.NOT_OWNER, "not here"))
    assert await future == "fallback"


def test_what_cannot_be_queued_is_over_at_once() -> None:
    heard: list[tuple[Any, WeirError | None]] = []
    full = WeirError(Reason.REJECTED_QUEUE_FULL, "too many calls wait")

    class Full(Mux):
        def call_nowait(self, item: Any, *, on_reply: Any, **options: Any) -> None:
            raise full

    tell(Full(), object(), deadline=Deadline(1.0), on_reply=lambda *told: heard.append(told))  # type: ignore[arg-type]
    assert heard == [(None, full)]
    tell(Full(), object(), deadline=Deadline(1.0))  # type: ignore[arg-type]
