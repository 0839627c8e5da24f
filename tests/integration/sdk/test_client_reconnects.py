"""The typed client when a stream breaks: it goes on behind the last piece that came, and nothing is said twice."""

from __future__ import annotations

import pytest
from weir.client import Reason, WeirError
from weir.inference.v1 import inference_pb2

from tests.integration.sdk.test_client_retries import (
    ACCEPTED,
    AWAY,
    Server,
    client,
    delta,
    end,
    fails,
    read,
    says,
    server,
    whole,
)

__all__ = ["server"]
ERROR = inference_pb2.FINISH_REASON_ERROR
REST = says(ACCEPTED, delta("b", b"2"), end())


@pytest.mark.parametrize("reason", [Reason.DEPENDENCY_UNAVAILABLE, Reason.DRAINING, Reason.INTERNAL])
async def test_a_stream_that_breaks_goes_on_behind_its_last_piece(server: Server, reason: Reason) -> None:
    server.scripts = [says(ACCEPTED, delta("a", b"1"), then=WeirError(reason, "gone")), REST]
    async with client(server, base=0.001) as calling, calling.generate("tiny", "hi", timeout=10) as stream:
        assert [piece.text async for piece in stream] == ["a", "b"]
    assert [start.cursor for start in server.starts] == [b"", b"1"]
    assert stream.reconnects == 1
    first, second = server.starts
    second.cursor = b""
    assert first == second


async def test_one_that_ends_without_a_terminal_frame_goes_on(server: Server) -> None:
    server.scripts = [says(ACCEPTED, delta("a", b"1")), REST]
    async with client(server, base=0.001) as calling:
        assert await whole(calling) == "ab"


async def test_a_worker_that_is_lost_is_no_end(server: Server) -> None:
    lost = says(ACCEPTED, delta("a", b"1"), delta("", b"1", ERROR), end(ERROR, "WORKER_LOST"))
    server.scripts = [lost, REST]
    async with client(server, base=0.001) as calling, calling.generate("tiny", "hi", timeout=10) as stream:
        pieces = [piece async for piece in stream]
    assert [(piece.text, piece.finish_reason) for piece in pieces] == [("a", 0), ("b", 0)]
    assert stream.end is not None
    assert stream.end.finish_reason == inference_pb2.FINISH_REASON_STOP


async def test_while_nobody_answers_it_tries_again(server: Server) -> None:
    server.scripts = [says(ACCEPTED, delta("a", b"1"), then=AWAY), *[fails(AWAY)] * 5, REST]
    async with client(server, base=0.0001, attempts=2) as calling:
        assert await whole(calling) == "ab"
    assert [start.cursor for start in server.starts] == [b"", *[b"1"] * 6]


async def test_tries_in_a_row_are_limited_and_progress_begins_anew(server: Server) -> None:
    steps = [says(ACCEPTED, delta(str(n), str(n).encode()), then=AWAY) for n in range(5)]
    server.scripts = [*steps, fails(AWAY)]
    got: list[str] = []
    async with (
        client(server, base=0.0001, reconnects=3) as calling,
        calling.generate("tiny", "hi", timeout=10) as stream,
    ):
        with pytest.raises(WeirError) as caught:
            await read(stream, got)
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert got == ["0", "1", "2", "3", "4"]
    assert len(server.calls) == 5 + 2


@pytest.mark.parametrize(
    "reason", [Reason.CURSOR_GONE, Reason.QUOTA_TOKENS, Reason.CONTENT_FILTER, Reason.ENGINE_ERROR]
)
async def test_what_another_gateway_cannot_mend_is_raised(server: Server, reason: Reason) -> None:
    failed = says(ACCEPTED, delta("a", b"1"), delta("", b"1", ERROR), end(ERROR, reason.name))
    server.scripts = [failed, REST]
    got: list[str] = []
    async with client(server, base=0.001) as calling, calling.generate("tiny", "hi", timeout=10) as stream:
        with pytest.raises(WeirError) as caught:
            await read(stream, got)
    assert caught.value.reason is reason
    assert got == ["a", ""]
    assert len(server.calls) == 1


async def test_what_could_not_go_on_exactly_is_not_tried(server: Server) -> None:
    """Its last delta took the cursor back."""
    server.scripts = [says(ACCEPTED, delta("a", b"1"), delta("b"), then=AWAY), REST]
    got: list[str] = []
    async with client(server, base=0.001) as calling, calling.generate("tiny", "hi", timeout=10) as stream:
        with pytest.raises(WeirError):
            await read(stream, got)
    assert (got, len(server.calls)) == (["a", "b"], 1)


async def test_with_a_key_it_is_sent_again_before_any_text(server: Server) -> None:
    server.scripts = [says(ACCEPTED, then=AWAY), says(ACCEPTED, delta("ab", b"1"), end())]
    async with (
        client(server, base=0.001) as calling,
        calling.generate("tiny", "hi", timeout=10, idempotency_key="order 7") as stream,
    ):
        assert [piece.text async for piece in stream] == ["ab"]
    assert [start.idempotency_key for start in server.starts] == ["order 7"] * 2
