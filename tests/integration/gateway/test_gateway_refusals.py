"""Every refusal says the same reason on every wire, in the metrics, in the log and in the record."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY
from weir.inference.v1 import inference_pb2, inference_pb2_grpc
from weir.quota.v1 import quota_pb2
from weir.worker.v1 import worker_pb2

from libs.errors import Reason, WeirError, from_rpc_error, grpc_code, http_status
from libs.telemetry.tracing import configure_tracing, shutdown_tracing
from services.gateway import refusals
from services.gateway.refusals import outcome_of
from tests.support.leaves import Rig, rig
from tests.support.native_stream import FLAGGED, HEADERS, Stream, ids, refusal, taken
from tests.support.openai_call import chat
from tests.support.tokenizer import write_byte_tokenizer

COUNTED = [*HEADERS, ("x-weir-request-counted", "1")]
REASONS = [reason for reason in Reason if reason is not Reason.UNSPECIFIED]
LIMITS = quota_pb2.Reserved(
    requests=quota_pb2.LimitStatus(limit=60, remaining=59),
    tokens=quota_pb2.LimitStatus(limit=1000, remaining=400),
    spend=quota_pb2.LimitStatus(limit=10**6, remaining=7, period=duration_pb2.Duration(seconds=86_400)),
)


def counted(operation: str, error: WeirError) -> float:
    labels = {"operation": operation, "outcome": outcome_of(error), "reason": error.reason.name}
    return REGISTRY.get_sample_value("weir_gateway_outcomes_total", labels) or 0.0


class Lines:
    """What the refusal log writes."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


async def test_b5_a_models_name_is_recorded_only_if_the_registry_knows_it(mesh: Rig) -> None:
    mesh.deny(WeirError(Reason.MODEL_NOT_FOUND, "for the test"))
    for asked, told in (("words of a user", "<unknown>"), ("tiny", "tiny")):
        await chat(mesh, model=asked)
        record = (await asyncio.wait_for(mesh.records.get(), 10)).request
        assert record.model == told


@pytest.mark.parametrize("retry", [2.5, None], ids=["later", "never"])
async def test_every_reason_is_the_same_everywhere(
    mesh: Rig, retry: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines()
    monkeypatch.setattr(refusals, "log", lines)
    for reason in REASONS:
        error = WeirError(reason, "for the test", limit="some_limit", retry_after=retry)
        mesh.deny(error)
        before = counted("generate", error), counted("chat", error)
        async with Stream(mesh) as stream:
            told = await refusal(stream)
            assert await stream.call.code() is grpc_code(reason)
        assert (told.reason, told.message, told.limit) == (reason, "for the test", "some_limit")
        assert told.retry_after == retry
        answer = await chat(mesh)
        assert answer.headers["x-weir-http-status"] == str(http_status(reason))
        assert answer.headers["x-weir-reason"] == reason.name
        envelope = answer.body["error"]
        assert (envelope["code"], envelope["param"]) == (reason.name.lower(), "some_limit")
        if retry is None:
            assert not {"retry-after", "retry-after-ms"} & set(answer.headers)
        else:
            assert answer.headers["retry-after"] == str(math.ceil(retry))
            assert answer.headers["retry-after-ms"] == str(round(retry * 1000))
        for _ in range(2):
            record = (await asyncio.wait_for(mesh.records.get(), 10)).request
            assert (record.outcome, record.reason) == (outcome_of(error), reason.name)
        assert (counted("generate", error), counted("chat", error)) == (before[0] + 1, before[1] + 1)
    mesh.gateway._pipeline.sweep()
    written = {(line["operation"], line["outcome"], line["reason"]) for line in lines.lines}
    expected = {
        (operation, outcome_of(WeirError(reason, "")), reason.name)
        for reason in REASONS
        for operation in ("generate", "chat")
    }
    assert written == expected


async def test_the_trace_of_a_refused_request_says_whose_it_was(mesh: Rig) -> None:
    spans = InMemorySpanExporter()
    configure_tracing(service="gateway", instance="gateway", zone="zone-a", exporter=spans)
    try:
        mesh.deny(WeirError(Reason.QUOTA_TOKENS, "for the test"))
        async with Stream(mesh, [*HEADERS, ("traceparent", f"00-{7:032x}-{7:016x}-01")]) as stream:
            await refusal(stream)
        await mesh.records.get()
    finally:
        shutdown_tracing()
    [span] = [each for each in spans.get_finished_spans() if each.name == "generate tiny"]
    about = dict(span.attributes or {})
    assert (about["weir.tenant"], about["gen_ai.request.model"]) == ("closed", "tiny")
    assert about["error.type"] == "QUOTA_TOKENS"


def test_evicted_is_told_from_rejected() -> None:
    evicted = {reason for reason in REASONS if outcome_of(WeirError(reason, "")) == "evicted"}
    assert evicted == {Reason.EVICTED_TTL, Reason.EVICTED_DEADLINE, Reason.EVICTED_SHED}


# ---- the limits of who comes past the edge ----------------------------------------------------


def limits(mesh: Rig) -> None:
    normal = mesh.quota.handler

    def handle(call: Any, context: Any) -> Any:
        reply = normal(call, context)
        if call.HasField("reserve"):
            reply.reserved.CopyFrom(LIMITS)
        return reply

    mesh.quota.handler = handle


async def trailers(stream: Stream) -> dict[str, str]:
    return {key: str(value) for key, value in await stream.call.trailing_metadata() or ()}


async def test_answers_tell_the_limits_where_the_edge_did_not(mesh: Rig) -> None:
    limits(mesh)
    async with Stream(mesh) as stream:
        await (await taken(mesh.workers[0])).last(ids("x"))
        await stream.rest()
        told = await trailers(stream)
    assert told["ratelimit-policy"] == '"requests";q=60;w=60, "tokens";q=1000;w=60, "spend";q=1000000;w=86400'
    assert told["ratelimit"].endswith('"spend";r=7;t=0')
    assert told["x-ratelimit-remaining-tokens"] == "400"
    for headers, expected in ((HEADERS, "59"), (COUNTED, None)):
        asking = asyncio.ensure_future(chat(mesh, headers))
        await (await taken(mesh.workers[0])).last(ids("x"))
        assert (await asking).headers.get("x-ratelimit-remaining-requests") == expected


async def test_refusals_of_admission_tell_the_limits_too(mesh: Rig) -> None:
    limits(mesh)
    normal = mesh.admission.handler

    def full(call: Any, context: Any) -> Any:
        if call.HasField("release"):
            return normal(call, context)
        raise WeirError(Reason.REJECTED_QUEUE_FULL, "full", retry_after=1.0)

    mesh.admission.handler = full
    async with Stream(mesh) as stream:
        assert (await refusal(stream)).reason is Reason.REJECTED_QUEUE_FULL
        assert (await trailers(stream))["x-ratelimit-remaining-tokens"] == "400"
    assert (await chat(mesh)).headers["ratelimit"].startswith('"requests";r=59')
    assert "ratelimit" not in (await chat(mesh, COUNTED)).headers


async def test_a_refused_reservation_tells_the_limit_that_refused(mesh: Rig) -> None:
    mesh.deny(WeirError(Reason.QUOTA_TOKENS, "none left", limit="tokens_per_minute", retry_after=12.0))
    headers = (await chat(mesh)).headers
    assert headers["x-ratelimit-limit-tokens"] == "1000"  # the tenant's, from the registry
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    assert headers["x-ratelimit-reset-tokens"] == "12s"
    assert headers["ratelimit"] == '"tokens";r=0;t=12'


async def test_embeddings_tell_them_as_well(mesh: Rig) -> None:
    limits(mesh)
    for worker in mesh.workers:
        worker.embeds_not = Reason.DRAINING
    request = inference_pb2.EmbedRequest(model="tiny", inputs=["ab"])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        refused = stub.Embed(request, timeout=30, metadata=HEADERS)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await refused
        assert from_rpc_error(caught.value).reason is Reason.NO_WORKERS
        assert dict(await refused.trailing_metadata())["x-ratelimit-remaining-tokens"] == "400"
        for worker in mesh.workers:
            worker.embeds_not = None
        answered = stub.Embed(request, timeout=30, metadata=HEADERS)
        await answered
        assert dict(await answered.trailing_metadata())["ratelimit"].startswith('"requests";r=59')


# ---- the gateway's own refusals ---------------------------------------------------------------


async def test_a_full_gateway_says_when_to_come_back(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    async with rig(write_byte_tokenizer(model), tmp_path / "state", max_active=1) as mesh:
        async with Stream(mesh) as first:
            running = await taken(mesh.workers[0])
            told = set()
            for _ in range(3):
                async with Stream(mesh) as second:
                    error = await refusal(second)
                assert (error.reason, error.limit) == (Reason.REJECTED_QUEUE_FULL, "max_active")
                told.add(error.retry_after)
            assert len(told) == 3  # jittered
            # Nothing has ended yet: that some were refused makes no room.
            mesh.gateway._pipeline.sweep()
            async with Stream(mesh) as later:
                told.add((await refusal(later)).retry_after)
            assert all(retry and 30.0 <= retry <= 45.0 for retry in told)
            await running.finish()
            await first.rest()
        assert mesh.reserved[0].request_id
        assert len(mesh.reserved) == 1


async def test_one_tenant_cannot_fill_the_gateway(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    async with rig(write_byte_tokenizer(model), tmp_path / "state", max_active=4, max_active_share=0.25) as mesh:
        async with Stream(mesh) as first, Stream(mesh, FLAGGED) as other:
            runs = [await taken(mesh.workers[0]), await taken(mesh.workers[0])]
            async with Stream(mesh) as second:
                error = await refusal(second)
            assert (error.reason, error.limit) == (Reason.REJECTED_QUEUE_FULL, "max_active_share")
            for running in runs:
                await running.finish()
            await first.rest()
            await other.rest()
        async with Stream(mesh) as again:
            await (await taken(mesh.workers[0])).finish()
            await again.rest()


async def test_a_failed_answer_tells_a_time_only_where_there_is_one(mesh: Rig) -> None:
    """Not streamed, so that the failure becomes the answer."""
    asking = asyncio.ensure_future(chat(mesh))
    await (await taken(mesh.workers[0])).finish(worker_pb2.FINISH_REASON_ERROR, "out of memory")
    answer = await asking
    assert answer.body["error"]["code"] == "engine_error"
    assert "retry-after" not in answer.headers
