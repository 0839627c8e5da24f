"""The life of a request through a real gateway with scripted leaves: ends, failures, migrations, fallbacks."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from weir.inference.v1 import inference_pb2
from weir.registry.v1 import registry_pb2
from weir.safety.v1 import safety_pb2
from weir.worker.v1 import worker_pb2

from libs.deadlines import to_seconds
from libs.errors import Reason, WeirError
from libs.telemetry.tracing import configure_tracing, shutdown_tracing
from services.gateway import metrics
from tests.support.leaves import Rig, Running, rig
from tests.support.native_stream import FLAGGED, HEADERS, Stream, ids, refusal, taken
from tests.support.tokenizer import write_byte_tokenizer


async def test_a_whole_life(mesh: Rig) -> None:
    async with Stream(mesh, max_tokens=8) as stream:
        running = await taken(mesh.workers[0])
        assert running.submit.prompt == ids("hi")
        assert running.submit.sampling.max_tokens == 8
        accepted = (await stream.read()).accepted
        assert (accepted.model_version, accepted.prompt_tokens) == ("tiny@1", 2)
        await running.tokens(ids("ab"))
        assert await stream.text(2) == "ab"
        await running.tokens(ids("c"))
        await running.finish()
        text, end = await stream.rest()
    assert text == "c"
    assert end.finish_reason == inference_pb2.FINISH_REASON_STOP
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (2, 3)
    assert mesh.reserved[0].tokens == 2 + 8
    settled = await mesh.settled.get()
    assert (settled.tokens, settled.request_id) == (5, mesh.reserved[0].request_id)
    assert (await mesh.released.get()).output_tokens == 3
    record = (await mesh.records.get()).request
    assert (record.outcome, record.completion_tokens, record.tenant, record.key_id) == ("stop", 3, "closed", "k1")


@pytest.mark.parametrize("moves", [False, True])
async def test_the_times_of_the_stages_add_up_to_those_that_callers_are_told(mesh: Rig, moves: bool) -> None:
    async with Stream(mesh, max_tokens=10) as stream:
        running = await taken(mesh.workers[0])
        if moves:
            await mesh.workers[0].stop()
            running = await taken(mesh.workers[1])
        await running.tokens(ids("abc"), numerics="aa")  # a group; its first was made as soon as it was asked for
        await running.finish()
        told = (await stream.rest())[1].breakdown
    times = {name.name: to_seconds(value) for name, value in told.ListFields()}
    first, total, decode = times.pop("time_to_first_token"), times.pop("total"), times.pop("decode")
    assert sum(times.values()) == pytest.approx(first, abs=1e-6)
    assert sum(times.values()) - times["release"] + decode == pytest.approx(total, abs=1e-6)
    assert times["release"] > 0


async def test_what_a_decision_waits_for_adds_up_to_it(mesh: Rig) -> None:
    parts = (metrics.SAFETY, metrics.ROUTE, metrics.QUOTA)
    before = [(sum(each.counts), each.total) for each in parts]
    async with Stream(mesh, max_tokens=10) as stream:
        running = await taken(mesh.workers[0])
        await running.finish()
        decided = to_seconds((await stream.rest())[1].breakdown.decide)
    waits = [each.total - total for each, (_, total) in zip(parts, before, strict=True)]
    assert [sum(each.counts) - count for each, (count, _) in zip(parts, before, strict=True)] == [1, 1, 1]
    assert all(each >= 0 for each in waits)
    assert 0 < sum(waits) <= decided


@pytest.mark.parametrize("began", ["", "t=soon", "t={:.6f}"])
async def test_the_time_at_the_edge_is_a_stage_where_the_edge_says_when_it_began(mesh: Rig, began: str) -> None:
    before = sum(metrics.EDGE.counts), metrics.EDGE.total
    headers = [*HEADERS, ("x-request-start", began.format(time.time() - 0.25))] if began else HEADERS
    async with Stream(mesh, headers, max_tokens=10) as stream:
        await (await taken(mesh.workers[0])).finish()
        await stream.rest()
    count, seconds = sum(metrics.EDGE.counts) - before[0], metrics.EDGE.total - before[1]
    assert count == (1 if began.endswith("}") else 0)
    assert seconds >= 0.25 * count


@pytest.mark.parametrize("sampled", [True, False])
async def test_a_traced_request_is_an_exemplar_of_its_times(mesh: Rig, sampled: bool) -> None:
    trace = f"{random.getrandbits(128) or 1:032x}"
    configure_tracing(service="gateway", instance="gateway", zone="zone-a", exporter=InMemorySpanExporter())
    try:
        headers = [*HEADERS, ("traceparent", f"00-{trace}-00f067aa0ba902b7-{int(sampled):02d}")]
        async with Stream(mesh, headers, max_tokens=10) as stream:
            running = await taken(mesh.workers[0])
            await running.tokens(ids("a"))
            await running.finish()
            await stream.rest()
            await mesh.records.get()
    finally:
        shutdown_tracing()
    for histogram in (metrics.DURATION, metrics.TTFT):
        [family] = histogram.collect()
        traces = {each.exemplar.labels["trace_id"] for each in family.samples if each.exemplar is not None}
        assert (trace in traces) is sampled


async def test_the_tree_of_a_traced_request_has_the_filters_part(mesh: Rig) -> None:
    spans = InMemorySpanExporter()
    configure_tracing(service="gateway", instance="gateway", zone="zone-a", exporter=spans)
    try:
        headers = [*HEADERS, ("traceparent", f"00-{7:032x}-{7:016x}-01")]
        async with Stream(mesh, headers, max_tokens=10) as stream:
            running = await taken(mesh.workers[0])
            await running.tokens(ids("a"))
            await running.finish()
            await stream.rest()
            await mesh.records.get()
    finally:
        shutdown_tracing()
    by_id = {each.context.span_id: each for each in spans.get_finished_spans()}
    served = [each for each in by_id.values() if each.name == "safety.filter_output" and each.kind is SpanKind.SERVER]
    assert served
    for each in served:
        asked = by_id[each.parent.span_id]
        assert (asked.name, asked.kind) == ("safety.filter_output", SpanKind.CLIENT)
        assert by_id[asked.parent.span_id].name == "generate tiny"


async def test_a_vanished_client_cancels_and_pays_for_what_it_got(mesh: Rig) -> None:
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("ab"))
        await stream.text(2)
    assert await asyncio.wait_for(mesh.workers[0].cancelled.get(), 10) == running.submit.handle
    assert (await asyncio.wait_for(mesh.settled.get(), 10)).tokens == 4
    released = await asyncio.wait_for(mesh.released.get(), 10)
    assert (released.output_tokens, released.cut_short) == (2, True)
    assert (await asyncio.wait_for(mesh.records.get(), 10)).request.outcome == "cancelled"


async def test_a_cancel_frame_gets_its_terminal_frame(mesh: Rig) -> None:
    async with Stream(mesh) as stream:
        await taken(mesh.workers[0])
        await stream.read()
        await stream.call.write(inference_pb2.GenerateRequest(cancel=inference_pb2.Cancel()))
        _, end = await stream.rest()
    assert end.finish_reason == inference_pb2.FINISH_REASON_CANCELLED


async def test_a_stop_string_over_two_steps_ends_it_on_the_worker_too(mesh: Rig) -> None:
    async with Stream(mesh, stop=["END"]) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("xE"))
        await running.tokens(ids("ND and more"))
        text, end = await stream.rest()
    assert text == "x"
    assert end.finish_reason == inference_pb2.FINISH_REASON_STOP
    assert await asyncio.wait_for(mesh.workers[0].cancelled.get(), 10) == running.submit.handle


async def test_a_lost_worker_is_replaced_without_gap_or_duplicate(mesh: Rig) -> None:
    async with Stream(mesh, max_tokens=10) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("abc"))
        assert await stream.text(3) == "abc"
        await mesh.workers[0].stop()
        moved = await taken(mesh.workers[1])
        assert moved.submit.prompt == ids("hiabc")
        assert moved.submit.sampling.max_tokens == 7
        await moved.tokens(ids("def"))
        await moved.finish()
        text, end = await stream.rest()
    assert text == "def"
    assert end.usage.completion_tokens == 6
    assert list(mesh.admitted[1].exclude_workers) == ["worker-a"]


@pytest.mark.parametrize(
    ("before", "after", "flags"),
    [
        ("aa", "aa", []),
        ("aa", "bb", ["numerics_changed"]),
        ("aa", "", ["numerics_changed"]),
        ("", "", ["numerics_changed"]),  # two that nobody knows are not alike
    ],
)
async def test_a_stream_that_moves_says_whether_its_numbers_may_be_others(
    mesh: Rig, before: str, after: str, flags: list[str]
) -> None:
    async with Stream(mesh, max_tokens=10) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("abc"), numerics=before)
        assert await stream.text(3) == "abc"
        await mesh.workers[0].stop()
        moved = await taken(mesh.workers[1])
        await moved.tokens(ids("def"), numerics=after)
        await moved.finish()
        text, end = await stream.rest()
    assert (text, list(end.degraded)) == ("def", flags)
    assert list((await mesh.records.get()).request.degraded) == flags


async def test_a_move_before_the_first_token_changes_nobodys_numbers(mesh: Rig) -> None:
    async with Stream(mesh, max_tokens=10) as stream:
        await taken(mesh.workers[0])
        await mesh.workers[0].stop()
        moved = await taken(mesh.workers[1])
        await moved.tokens(ids("def"), numerics="bb")
        await moved.finish()
        text, end = await stream.rest()
    assert (text, list(end.degraded)) == ("def", [])


async def test_when_no_worker_is_left_the_error_says_so(mesh: Rig) -> None:
    async with Stream(mesh) as stream:
        await taken(mesh.workers[0])
        await mesh.workers[0].stop()
        await taken(mesh.workers[1])
        await mesh.workers[1].stop()
        _, end = await stream.rest()
    assert end.finish_reason == inference_pb2.FINISH_REASON_ERROR
    assert end.error_reason == "WORKER_LOST"
    assert (await asyncio.wait_for(mesh.records.get(), 10)).request.reason == "WORKER_LOST"


async def test_a_stale_grant_is_asked_for_again(mesh: Rig) -> None:
    async with Stream(mesh) as stream:
        await (await taken(mesh.workers[0])).refuse(Reason.GRANT_INVALID)
        again = await taken(mesh.workers[0])
        assert again.submit.request_id != mesh.admitted[0].request_id
        await again.tokens(ids("ok"))
        await again.finish()
        text, _ = await stream.rest()
    assert text == "ok"
    stale, used = [await asyncio.wait_for(mesh.released.get(), 10) for _ in range(2)]
    assert (stale.unused, used.unused) == (True, False)


async def test_an_engine_fault_is_an_error_with_what_was_delivered(mesh: Rig) -> None:
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("ab"))
        await stream.text(2)
        await running.finish(worker_pb2.FINISH_REASON_ERROR, "out of memory")
        _, end = await stream.rest()
    assert (end.error_reason, end.message) == ("ENGINE_ERROR", "out of memory")
    assert end.usage.completion_tokens == 2
    released = await asyncio.wait_for(mesh.released.get(), 10)
    assert (released.failed, released.output_tokens) == (True, 2)


async def test_a_refused_reservation_leaves_nothing_behind(mesh: Rig) -> None:
    """Nor is it settled: its owner holds nothing."""
    normal = mesh.quota.handler
    denied = WeirError(Reason.QUOTA_TOKENS, "too many", limit="tokens_per_minute", retry_after=3.0)
    mesh.deny(denied)
    async with Stream(mesh) as stream:
        error = await refusal(stream)
    assert (error.reason, error.limit, error.retry_after) == (Reason.QUOTA_TOKENS, "tokens_per_minute", 3.0)
    assert mesh.admitted == []
    record = (await asyncio.wait_for(mesh.records.get(), 10)).request
    assert (record.outcome, record.reason) == ("rejected", "QUOTA_TOKENS")
    mesh.quota.handler = normal
    async with Stream(mesh) as stream:
        await (await taken(mesh.workers[0])).last(ids("ab"))
        await stream.rest()
    (served,) = mesh.reserved
    settled = await asyncio.wait_for(mesh.settled.get(), 10)  # they come in the order in which they were sent
    assert (settled.request_id, settled.tokens) == (served.request_id, 4)


async def test_without_the_rate_limiter_the_gateways_own_share_binds(mesh: Rig) -> None:
    await mesh.quota.stop()
    async with Stream(mesh) as first, Stream(mesh) as second:
        runs = [await taken(mesh.workers[0]), await taken(mesh.workers[0])]
        assert "quota_local" in (await first.read()).accepted.degraded
        async with Stream(mesh) as third:  # the tenant's limit is two streams
            assert (await refusal(third)).reason is Reason.QUOTA_CONCURRENCY
        for running in runs:
            await running.finish()
        await first.rest()
        await second.rest()


async def test_without_the_router_the_snapshot_decides(mesh: Rig) -> None:
    await mesh.router.stop()
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        assert "router_local" in (await stream.read()).accepted.degraded
        await running.finish()
        await stream.rest()


async def test_a_block_stops_before_the_match_and_ends_the_sequence(mesh: Rig) -> None:
    normal = mesh.safety.handler

    def block(call: Any, context: Any) -> Any:
        if not call.HasField("filter_output") or not any("bad" in d for d in call.filter_output.deltas):
            return normal(call, context)
        reply = safety_pb2.SafetyReply()
        reply.output.released.extend([d.split("bad")[0] for d in call.filter_output.deltas])
        reply.output.held.extend([0] * len(call.filter_output.filters))
        found = safety_pb2.Intervention(category="test", action=safety_pb2.ACTION_BLOCK)
        reply.output.findings.add(position=0, intervention=found)
        return reply

    mesh.safety.handler = block
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("good bad worse"))
        text, end = await stream.rest()
    assert text == "good "
    assert end.finish_reason == inference_pb2.FINISH_REASON_CONTENT_FILTER
    found = (await asyncio.wait_for(mesh.records.get(), 10)).safety
    assert (found.stage, found.category, found.action) == ("output", "test", "block")
    assert await asyncio.wait_for(mesh.workers[0].cancelled.get(), 10) == running.submit.handle


async def test_a_restarted_filter_goes_on_where_it_was(mesh: Rig) -> None:
    """It held two characters when it died; it is opened again with what was released, and fed them again."""
    normal = mesh.safety.handler
    feeds: list[Any] = []

    def hold(call: Any, context: Any) -> Any:
        if not call.HasField("filter_output"):
            return normal(call, context)
        feed = call.filter_output
        feeds.append(feed)
        reply = safety_pb2.SafetyReply()
        for delta, last in zip(feed.deltas, feed.last, strict=True):
            keep = 0 if last else min(2, len(delta))
            reply.output.released.append(delta[: len(delta) - keep])
            reply.output.held.append(keep)
        return reply

    mesh.safety.handler = hold
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("abcdef"))
        assert await stream.text(4) == "abcd"
        await mesh.safety.stop()
        await mesh.safety.start()
        await running.tokens(ids("gh"))
        await running.finish()
        text, end = await stream.rest()
    assert text == "efgh"
    assert end.finish_reason == inference_pb2.FINISH_REASON_STOP
    reopened = next(feed for feed in feeds[1:] if feed.open)
    assert reopened.open[0].context == "abcd"
    assert reopened.deltas[0].startswith("ef")


async def test_fail_closed_ends_after_the_grace(mesh: Rig) -> None:
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await mesh.safety.stop()
        await running.tokens(ids("secret"))
        text, end = await stream.rest()
    assert text == ""
    assert end.error_reason == "DEPENDENCY_UNAVAILABLE"


async def test_serve_and_flag_lets_it_through(mesh: Rig) -> None:
    await mesh.safety.stop()
    async with Stream(mesh, FLAGGED) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("text"))
        await running.finish()
        text, end = await stream.rest()
    assert text == "text"
    assert "safety_skipped" in end.degraded


async def test_text_that_skips_the_filter_midway_is_flagged_at_the_end(mesh: Rig) -> None:
    async with Stream(mesh, FLAGGED) as stream:
        running = await taken(mesh.workers[0])
        assert not (await stream.read()).accepted.degraded
        await mesh.safety.stop()
        await running.tokens(ids("text"))
        assert await stream.text(4) == "text"
        await running.finish()
        _, end = await stream.rest()
    assert list(end.degraded) == ["safety_skipped"]


async def test_records_wait_for_the_audit_service(mesh: Rig) -> None:
    await mesh.audit.stop()
    async with Stream(mesh) as stream:
        await (await taken(mesh.workers[0])).finish()
        await stream.rest()
    await mesh.audit.start()
    assert (await asyncio.wait_for(mesh.records.get(), 20)).request.outcome == "stop"


async def test_many_choices_are_one_grant(mesh: Rig) -> None:
    async with Stream(mesh, n=2, seed=5) as stream:
        first, second = await taken(mesh.workers[0]), await taken(mesh.workers[0])
        assert {first.submit.sampling.seed, second.submit.sampling.seed} == {5, 6}
        await first.tokens(ids("a"))
        await second.tokens(ids("b"))
        await first.finish()
        await second.finish(worker_pb2.FINISH_REASON_LENGTH)
        _, end = await stream.rest()
    assert len(mesh.admitted) == 1
    assert mesh.admitted[0].choices == 2
    assert end.finish_reason == inference_pb2.FINISH_REASON_LENGTH
    texts = {c.index: c.text for frame in stream.frames for c in frame.delta.choices if c.text}
    assert texts == {0: "a", 1: "b"}


async def test_unauthenticated_and_scopeless_callers_are_refused(mesh: Rig) -> None:
    for headers, reason in (([], Reason.UNAUTHENTICATED), (HEADERS[:1], Reason.SCOPE_MISSING)):
        async with Stream(mesh, headers) as stream:
            assert (await refusal(stream)).reason is reason


async def test_without_admission_a_few_requests_run_without_a_grant(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    async with rig(write_byte_tokenizer(model), tmp_path / "state", max_local_grants=1) as mesh:
        async with Stream(mesh) as first:  # admission has been reached once
            await (await taken(mesh.workers[0])).finish()
            await first.rest()
        for worker in mesh.workers:
            await mesh.put(
                registry_pb2.Endpoint(
                    service="worker",
                    instance=worker.name,
                    address=f"127.0.0.1:{worker.port}",
                    zone="zone-a",
                    model_versions=["tiny@1"],
                )
            )
        await mesh.admission.stop()
        async with Stream(mesh) as local:
            assert list((await local.read()).accepted.degraded) == ["admission_local"]
            running = await one_of(mesh)
            assert not running.submit.grant.mac
            async with Stream(mesh) as waiting:
                # The cap is one: this request waits for admission, and then runs on a grant of it.
                await mesh.admission.start()
                assert not (await waiting.read()).accepted.degraded
                await (await one_of(mesh)).finish()
                await waiting.rest()
            await running.finish()
            await local.rest()


async def one_of(mesh: Rig) -> Running:
    """The next sequence that any worker gets."""
    takes = [asyncio.ensure_future(worker.submitted.get()) for worker in mesh.workers]
    done, rest = await asyncio.wait(takes, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    for take in rest:
        take.cancel()
    return done.pop().result()


async def test_at_debug_a_request_leaves_a_line_without_its_words(mesh: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "services.gateway.account")
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("abc"), numerics="aa")
        await running.finish()
        await stream.rest()
    await mesh.records.get()
    [line] = [record.fields for record in caplog.records if record.name == "services.gateway.account"]
    assert (line["tenant"], line["model_version"], line["outcome"]) == ("closed", "tiny@1", "stop")
    assert (line["prompt_tokens"], line["completion_tokens"], line["worker"]) == (2, 3, "worker-a")
    assert line["seconds"] >= line["first_text_after"] >= 0
    assert not {"hi", "abc"} & {str(value) for value in line.values()}


async def test_what_broke_a_stream_is_in_the_log(mesh: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "services.gateway.refusals")
    async with Stream(mesh) as stream:
        running = await taken(mesh.workers[0])
        await running.tokens(ids("ab"))
        await stream.text(2)
        await running.finish(worker_pb2.FINISH_REASON_ERROR, "for the test")
        await stream.rest()
    await mesh.records.get()
    mesh.gateway._pipeline.sweep()
    [line] = [record for record in caplog.records if record.name == "services.gateway.refusals"]
    assert line.getMessage() == "broke"
    assert (line.fields["outcome"], line.fields["reason"], line.fields["count"]) == ("error", "ENGINE_ERROR", 1)
