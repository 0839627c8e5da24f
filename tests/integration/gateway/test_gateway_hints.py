"""What callers say of user and session reaches the router, and the answer tells which arm they got."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from weir.inference.v1 import inference_pb2, inference_pb2_grpc
from weir.registry.v1 import registry_pb2
from weir.router.v1 import router_pb2

from libs.callers import bounded
from services.gateway.openai.requests import parse_chat
from tests.support.canary import CANDIDATE, begin
from tests.support.leaves import MODEL, Rig
from tests.support.native_stream import HEADERS, Stream, ids, taken
from tests.support.openai_call import Answered, chat

USER, SESSION = ("x-weir-user", "header-user"), ("x-weir-session", "header-session")


def listen(mesh: Rig) -> list[router_pb2.Resolve]:
    """Every question to the router."""
    asked: list[router_pb2.Resolve] = []
    normal = mesh.router.handler

    def handle(call: Any, context: Any) -> Any:
        if call.HasField("resolve"):
            asked.append(call.resolve)
        return normal(call, context)

    mesh.router.handler = handle
    return asked


async def answered(mesh: Rig, headers: list[tuple[str, str]] = HEADERS, **body: Any) -> Answered:
    asking = asyncio.ensure_future(chat(mesh, headers, **body))
    running = await taken(mesh.workers[0])
    await running.last(ids("ok"))
    return await asking


@pytest.mark.parametrize(
    ("headers", "body", "user", "session"),
    [
        ([], {}, "", ""),
        ([], {"user": "u"}, "u", ""),
        ([], {"user": "u", "safety_identifier": "s"}, "s", ""),
        ([], {"prompt_cache_key": "c"}, "", "c"),
        ([], {"metadata": {"session_id": "m", "other": "x"}}, "", "m"),
        ([], {"metadata": {"session_id": 7}}, "", ""),
        ([], {"metadata": "what another server may have made of it"}, "", ""),
        ([], {"prompt_cache_key": "c", "metadata": {"session_id": "m"}}, "", "c"),
        ([USER], {"user": "u"}, "header-user", ""),
        ([USER, SESSION], {"user": "u", "prompt_cache_key": "c"}, "header-user", "header-session"),
    ],
)
async def test_bodies_and_headers_name_user_and_session(
    mesh: Rig, headers: list[tuple[str, str]], body: dict[str, Any], user: str, session: str
) -> None:
    asked = listen(mesh)
    answer = await answered(mesh, [*HEADERS, *headers], **body)
    assert (asked[0].user, asked[0].session, asked[0].tenant) == (user, session, "closed")
    assert asked[0].request_id == answer.headers["x-request-id"]


async def test_the_native_sticky_key_is_the_session(mesh: Rig) -> None:
    asked = listen(mesh)
    stream = Stream(mesh, [*HEADERS, USER])
    stream._spec.sticky_key = "conversation"
    async with stream:
        await (await taken(mesh.workers[0])).last(ids("ok"))
        await stream.rest()
    assert (asked[0].user, asked[0].session) == ("header-user", "conversation")


async def test_long_names_travel_as_digests(mesh: Rig) -> None:
    asked = listen(mesh)
    await answered(mesh, user="u" * 100_000)
    assert asked[0].user == bounded("u" * 100_000)
    assert len(asked[0].user) == 64
    assert bounded("u" * 256) == "u" * 256
    assert bounded("u" * 257) != bounded("u" * 258)


def test_a_user_that_is_no_text_is_refused_as_before() -> None:
    parsed = parse_chat(b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "metadata": null}')
    assert (parsed.spec.user, parsed.spec.session) == ("", "")


async def test_the_answer_tells_version_and_arm(mesh: Rig) -> None:
    await begin(mesh)
    answer = await answered(mesh)
    assert (answer.headers["x-weir-model-version"], answer.headers["x-weir-arm"]) == (CANDIDATE, "canary")
    assert (answer.body["model"], answer.body["weir"]["arm"]) == (CANDIDATE, "canary")
    record = (await asyncio.wait_for(mesh.records.get(), 10)).request
    assert (record.model_version, record.arm) == (CANDIDATE, "canary")
    pinned = await answered(mesh, model=MODEL)
    assert pinned.headers["x-weir-model-version"] == MODEL
    assert "x-weir-arm" not in pinned.headers


async def test_without_a_router_everybody_keeps_their_arm(mesh: Rig) -> None:
    await begin(mesh, sticky=registry_pb2.STICKY_BY_USER, weights=[5000])
    users = [f"user-{number}" for number in range(12)]

    async def arms() -> list[str]:
        return [(await answered(mesh, user=user)).headers["x-weir-arm"] for user in users]

    before = await arms()
    assert set(before) == {"baseline", "canary"}
    await mesh.router.stop()
    assert await arms() == before


async def test_counting_tokens_asks_for_the_same_arm(mesh: Rig) -> None:
    await begin(mesh, sticky=registry_pb2.STICKY_BY_SESSION, weights=[5000])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for number in range(6):
            session = f"s{number}"
            counted = await stub.CountTokens(
                inference_pb2.CountTokensRequest(
                    spec=inference_pb2.GenerationSpec(model="tiny", prompt="hi", sticky_key=session)
                ),
                metadata=HEADERS,
                timeout=10,
            )
            answer = await answered(mesh, prompt_cache_key=session)
            assert counted.model_version == answer.headers["x-weir-model-version"]
