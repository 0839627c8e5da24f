"""A tenant's admin asks what its tenant used: OpenAI's pages, by hours and days, of nobody else."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.openai.v1 import openai_pb2, openai_pb2_grpc
from weir.records.v1 import records_pb2, records_pb2_grpc

from libs.errors import Reason, WeirError
from services.gateway.openai.usage import COMPLETIONS, EMBEDDINGS, PREDICTIONS, costs_body, page_of, usage_body
from tests.support.leaves import Rig

DAY = 86_400
NOV_2 = 1_793_577_600  # 2026-11-02 in UTC
NOW = NOV_2 + 10 * DAY + 3600
ADMIN = [("x-weir-tenant", "closed"), ("x-weir-scopes", "usage.read"), ("x-weir-key-id", "k1")]


def asked(**fields: Any) -> openai_pb2.GetUsageRequest:
    return openai_pb2.GetUsageRequest(**{"start_time": NOV_2 + 5} | fields)


def test_a_page_is_a_week_from_the_day_of_its_beginning() -> None:
    page = page_of(asked(group_by=["model"]), NOW)
    assert (page.question.since.seconds, page.question.until.seconds) == (NOV_2, NOV_2 + 7 * DAY)
    assert list(page.question.by) == ["day", "version"]
    row = records_pb2.UsageRow(values=["2026-11-03", "fast@1"], requests=2, prompt_tokens=7, completion_tokens=3)
    body = json.loads(usage_body(page, COMPLETIONS, [row]))
    assert (body["object"], body["has_more"], body["next_page"]) == ("page", True, "2026-11-09")
    assert [each["start_time"] for each in body["data"]] == [NOV_2 + n * DAY for n in range(7)]
    assert body["data"][0]["results"] == []
    [result] = body["data"][1]["results"]
    assert (result["model"], result["input_tokens"], result["output_tokens"]) == ("fast@1", 7, 3)
    assert (result["num_model_requests"], result["api_key_id"], result["user_id"]) == (2, None, None)


def test_a_page_by_the_hour_is_a_day_from_the_hour_of_its_beginning() -> None:
    page = page_of(asked(bucket_width="1h", start_time=NOV_2 + 5 * 3600 + 7), NOW)
    assert (page.question.since.seconds, page.question.until.seconds) == (NOV_2 + 5 * 3600, NOV_2 + 29 * 3600)
    assert list(page.question.by) == ["hour"]
    body = json.loads(usage_body(page, COMPLETIONS, [records_pb2.UsageRow(values=["2026-11-02T06"], requests=2)]))
    assert [each["start_time"] for each in body["data"]] == [NOV_2 + (5 + n) * 3600 for n in range(24)]
    assert (len(body["data"][1]["results"]), body["next_page"]) == (1, "2026-11-03T05")
    following = page_of(asked(bucket_width="1h", page=body["next_page"], limit=168), NOW)
    assert following.question.since.seconds == NOV_2 + 29 * 3600


def test_predictions_and_embeddings_have_pages_of_their_own() -> None:
    page = page_of(asked(group_by=["model"], limit=1), NOW)
    row = records_pb2.UsageRow(values=["2026-11-02", "fraud@1"], requests=3, rows=48, prompt_tokens=7)
    told = []
    for surface in (PREDICTIONS, EMBEDDINGS):
        [bucket] = json.loads(usage_body(page, surface, [row]))["data"]
        told += bucket["results"]
    assert [each["object"].split(".")[2] for each in told] == ["predictions", "embeddings"]
    assert [(each["num_model_requests"], each.get("num_rows"), each.get("input_tokens")) for each in told] == [
        (3, 48, None),
        (3, None, 7),
    ]


def test_costs_are_dollars() -> None:
    page = page_of(openai_pb2.GetCostsRequest(start_time=NOV_2, end_time=NOV_2 + DAY, group_by=["line_item"]), NOW)
    row = records_pb2.UsageRow(values=["2026-11-02", "fast@1"], requests=1, spend_microusd=1_250_000)
    refused = records_pb2.UsageRow(values=["2026-11-02", ""], refused=9)
    [bucket] = json.loads(costs_body(page, [refused, row]))["data"]
    assert bucket["end_time"] == NOV_2 + DAY
    [result] = bucket["results"]
    assert (result["amount"], result["line_item"]) == ({"value": 1.25, "currency": "usd"}, "fast@1")


@given(st.integers(1, 40), st.integers(1, 31))
def test_pages_follow_each_other_and_every_day_is_in_one(days: int, limit: int) -> None:
    seen: list[int] = []
    request = asked(end_time=NOV_2 + days * DAY, limit=limit)
    for _ in range(days):
        page = page_of(request, NOW)
        body = json.loads(usage_body(page, COMPLETIONS, []))
        seen += [each["start_time"] for each in body["data"]]
        if not body["has_more"]:
            break
        request.page = body["next_page"]
    assert seen == [NOV_2 + n * DAY for n in range(days)]


@pytest.mark.parametrize(
    "fields",
    [
        {"bucket_width": "1m"},
        {"group_by": ["user_id"]},
        {"limit": 32},
        {"start_time": 0},
        {"start_time": 2**62},
        {"page": "tomorrow"},
        {"start_time": 253_402_214_400},
        {"page": "9999-12-31"},
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(WeirError) as refused:
        page_of(asked(**fields), NOW)
    assert (refused.value.reason, refused.value.limit) == (Reason.INVALID_REQUEST, next(iter(fields)))


async def test_an_admin_is_told_of_its_own_tenant_and_others_are_refused(
    mesh: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[records_pb2.UsageRequest] = []

    class Records(records_pb2_grpc.RecordsServiceServicer):
        async def Usage(  # noqa: N802
            self, request: records_pb2.UsageRequest, context: grpc.aio.ServicerContext
        ) -> records_pb2.UsageResponse:
            questions.append(request)
            return records_pb2.UsageResponse(rows=[records_pb2.UsageRow(values=["2026-11-02"], requests=3)])

    add = mesh.audit._add

    def add_both(servicer: Any, server: grpc.aio.Server) -> None:
        add(servicer, server)
        records_pb2_grpc.add_RecordsServiceServicer_to_server(Records(), server)

    monkeypatch.setattr(mesh.audit, "_add", add_both)
    await mesh.audit.stop()
    await mesh.audit.start()
    request = asked(end_time=NOV_2 + DAY, api_key_ids=["k1"], models=["fast"])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        stub = openai_pb2_grpc.OpenAIServiceStub(channel)
        [page] = [each async for each in stub.GetUsage(request, metadata=ADMIN, timeout=20)]
        assert json.loads(page.data)["data"][0]["results"][0]["num_model_requests"] == 3
        [question] = questions
        assert "embed" not in question.operations
        assert (question.tenant, list(question.keys), list(question.models)) == ("closed", ["k1"], ["fast"])
        call = stub.GetCosts(
            openai_pb2.GetCostsRequest(start_time=NOV_2),
            metadata=[("x-weir-tenant", "closed"), ("x-weir-scopes", "inference models.read")],
            timeout=20,
        )
        [refused] = [each async for each in call]
        assert "usage.read" in json.loads(refused.data)["error"]["message"]
        assert len(questions) == 1
