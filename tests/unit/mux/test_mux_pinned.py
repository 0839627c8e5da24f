"""A call that is pinned to a stream ends with it, written or not."""

from __future__ import annotations

import pytest

from libs.mux.core import Call, ClientCore, Outcome, Semantics


def call(*, pinned: int, semantics: Semantics = Semantics.ONCE) -> Call[str]:
    return Call("item", deadline=100.0, semantics=semantics, waiter="waiter", traceparent="", pinned=pinned, size=1)


@pytest.mark.parametrize("semantics", list(Semantics))
def test_a_pinned_call_that_was_not_written_ends_with_its_stream(semantics: Semantics) -> None:
    core: ClientCore[str] = ClientCore(max_queued=10, max_attempts=4)
    stream = core.open(window=1)
    written, waiting, free = call(pinned=1, semantics=semantics), call(pinned=1, semantics=semantics), call(pinned=0)
    for one in (written, waiting, free):
        assert core.submit(one)
    taken, _ = core.take(stream, 0.0, max_items=10, max_bytes=1000)
    assert taken == [written]
    assert core.lose(stream) == [(written, Outcome.LOST), (waiting, Outcome.LOST)]
    assert core.queued == 1  # the free one goes out on the next stream
    following = core.open(window=10)
    taken, ended = core.take(following, 0.0, max_items=10, max_bytes=1000)
    assert (taken, ended) == ([free], [])
