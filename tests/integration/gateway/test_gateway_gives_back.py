"""What is held for a request is given back, whatever becomes of it and of the process: leases, shares, records."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from weir.inference.v1 import inference_pb2
from weir.safety.v1 import safety_pb2

from libs.errors import Reason, WeirError
from tests.support.leaves import Held, Rig, rig
from tests.support.native_stream import Stream, ids, refusal, taken
from tests.support.tokenizer import write_byte_tokenizer


async def test_no_lease_is_opened_for_a_request_that_is_gone(tmp_path: Path) -> None:
    """Its reservation is not answered in time: the fallback would hold a share that nobody gives back."""
    model = tmp_path / "model"
    model.mkdir()
    async with rig(write_byte_tokenizer(model), tmp_path / "state", decide_timeout=0.2) as mesh:
        reserves = Held(mesh.quota, lambda call: call.HasField("reserve"))
        checks = mesh.safety.handler

        def block(call: Any, context: Any) -> Any:
            rejection = WeirError(Reason.CONTENT_FILTER, "no").to_rejection()
            verdict = safety_pb2.InputVerdict(action=safety_pb2.ACTION_BLOCK, rejection=rejection)
            return safety_pb2.SafetyReply(input=verdict)

        mesh.safety.handler = block
        async with Stream(mesh) as stream:
            assert (await refusal(stream)).reason is Reason.CONTENT_FILTER
        await reserves.question()
        mesh.safety.handler = checks
        async with Stream(mesh) as later:  # its own reservation is late as well, after the first one's
            await (await taken(mesh.workers[0])).finish()
            _, end = await later.rest()
        assert list(end.degraded) == ["quota_local"]
        assert mesh.gateway._quota._bridge._ledger.live_leases == 0
        reserves.go.set()


async def test_redacted_words_that_take_more_tokens_are_held_too(mesh: Rig) -> None:
    normal = mesh.safety.handler

    def redact(call: Any, context: Any) -> Any:
        if not call.HasField("check_input"):
            return normal(call, context)
        verdict = safety_pb2.InputVerdict(action=safety_pb2.ACTION_REDACT, texts=["[removed]"])
        return safety_pb2.SafetyReply(input=verdict)

    mesh.safety.handler = redact
    async with Stream(mesh, max_tokens=6) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.prompt == ids("[removed]")
        await running.last(ids("abcdef"))
        await stream.rest()
    first, second = mesh.reserved
    assert (first.tokens, first.request_counted) == (8, False)
    assert (second.tokens, second.prompt_tokens, second.request_counted) == (15, 9, True)
    ends = [await asyncio.wait_for(mesh.settled.get(), 10) for _ in range(2)]
    assert [(end.request_id, end.tokens) for end in ends] == [(first.request_id, 0), (second.request_id, 15)]
    assert first.request_id != second.request_id


async def test_what_was_refused_without_the_owner_is_settled(tmp_path: Path) -> None:
    """It was asked, and may hold a lease."""
    model = tmp_path / "model"
    model.mkdir()
    async with rig(write_byte_tokenizer(model), tmp_path / "state", decide_timeout=0.2) as mesh:
        reserves = Held(mesh.quota, lambda call: call.HasField("reserve"))
        async with Stream(mesh) as one, Stream(mesh) as other:
            asked = {(await reserves.question()).reserve.request_id for _ in range(2)}
            running = [await taken(mesh.workers[0]) for _ in range(2)]
            async with Stream(mesh) as beyond:
                assert (await refusal(beyond)).reason is Reason.QUOTA_CONCURRENCY
            refused = await reserves.question()
            while refused.reserve.granted:  # of the others the owner is told, too
                refused = await reserves.question()
            settled = await asyncio.wait_for(mesh.settled.get(), 10)
            assert settled.request_id == refused.reserve.request_id not in asked
            for each in running:
                await each.finish()
            await one.rest()
            await other.rest()
            reserves.go.set()


# ---- the process's end ------------------------------------------------------------------------


async def test_a_drain_that_is_cut_ends_its_streams_properly(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    cut = rig(write_byte_tokenizer(model), tmp_path / "state", drain=1.2)
    mesh = await cut.__aenter__()
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("ab"))
        await stream.text(2)
        ending = asyncio.ensure_future(cut.__aexit__(None, None, None))
        _, end = await stream.rest()
        await ending
    assert (end.finish_reason, end.error_reason) == (inference_pb2.FINISH_REASON_ERROR, "DRAINING")
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == 4
    assert (await asyncio.wait_for(mesh.released.get(), 10)).output_tokens == 2
    assert (await asyncio.wait_for(mesh.records.get(), 10)).request.reason == "DRAINING"
    assert mesh.leftovers() == {}


async def test_a_drain_that_is_cut_refuses_what_still_waits(tmp_path: Path) -> None:
    """Else its lease and its place in admission's queue would outlive the process."""
    model = tmp_path / "model"
    model.mkdir()
    cut = rig(write_byte_tokenizer(model), tmp_path / "state", drain=1.2)
    mesh = await cut.__aenter__()
    admission = Held(mesh.admission, lambda call: call.HasField("admit"))
    async with Stream(mesh) as stream:
        asked = await admission.question()
        ending = asyncio.ensure_future(cut.__aexit__(None, None, None))
        error = await refusal(stream)
        await ending
    assert error.reason is Reason.DRAINING
    assert error.retry_after is not None
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == 0
    released = await asyncio.wait_for(mesh.released.get(), 10)
    assert (released.request_id, released.unused) == (asked.admit.request_id, True)
    assert (await asyncio.wait_for(mesh.records.get(), 10)).request.reason == "DRAINING"
    assert mesh.leftovers() == {}
