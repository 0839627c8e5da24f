"""Callers whom edge-auth has named a moment ago, with a real Envoy: who is known, for how long, and who is not."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import httpx2
import pytest
import pytest_asyncio
from google.api import httpbody_pb2
from weir.inference.v1 import inference_pb2, inference_pb2_grpc

from libs.registry import Put, keys
from services.edge_auth.policy.credentials import estimated_tokens
from tests.support.fixtures.edge_fixtures import Edge, running_edge
from tests.support.known import CHAT, LATEST, PATIENT, Asked, client, edge_lua, held_up, new_key, over_http2, pushed
from tests.support.upstreams import echo, json_body

pytestmark = pytest.mark.asyncio(loop_scope="module")
ASKED, KNOWN = (1, 1), (0, 0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Edge]:
    """A running edge."""
    with edge_lua(**PATIENT):
        # Of one part, so that all addresses meet in one memory.
        async with running_edge(tmp_path_factory.mktemp("known"), source_parts=1) as found:
            yield found


@pytest.fixture(autouse=True)
def fresh(edge: Edge) -> None:
    """Verdicts are of the newest revision and hold as long as they may; limits are far."""
    edge.upstreams.gateway.chat = echo
    edge.upstreams.auth.learned = {"rev": LATEST, "ttl": 60_000}
    edge.upstreams.ratelimit.free = 1000
    edge.upstreams.ratelimit.refuse = ""


@pytest_asyncio.fixture(loop_scope="module")
async def http(edge: Edge) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the plain listener."""
    async with client(edge) as found:
        yield found


async def chat(http: httpx2.AsyncClient, key: dict[str, str], path: str = CHAT, **more: str) -> int:
    """The status of a chat; the answer is read."""
    return (await http.post(path, json={"model": "m"}, headers={**key, **more})).status_code


async def test_the_second_request_of_a_caller_is_asked_of_nobody(edge: Edge, http: httpx2.AsyncClient) -> None:
    key, asked = new_key(edge), Asked(edge)
    assert await chat(http, key) == 200
    assert asked.of == ASKED
    for _ in range(5):
        assert await chat(http, key) == 200
    assert asked.of == ASKED
    first, last = edge.upstreams.gateway.seen[-6], edge.upstreams.gateway.seen[-1]
    named = [name for name in first if name.startswith("x-weir-") and name != "x-weir-estimated-tokens"]
    assert named
    assert {name: first[name] for name in named} == {name: last[name] for name in named}
    # What the stand-in for edge-auth makes up, the edge has to count.
    assert last["x-weir-estimated-tokens"] == str(len(b'{"model":"m"}') // 4)
    for word in ("authorization", "x-weir-ask", "x-weir-refused", "x-weir-request-counted"):
        assert word not in last


@pytest.mark.parametrize("length", [None, 0, 3, 17, 70_000])
async def test_the_estimate_is_what_edge_auth_says(edge: Edge, http: httpx2.AsyncClient, length: int | None) -> None:
    async def unmeasured() -> AsyncIterator[bytes]:
        yield b"{}"

    key = new_key(edge)
    await chat(http, key)
    await http.post(CHAT, content=unmeasured() if length is None else b"x" * length, headers=key)
    told = estimated_tokens("" if length is None else str(length))
    assert edge.upstreams.gateway.seen[-1]["x-weir-estimated-tokens"] == str(told)


async def test_over_http2_and_tls_too(edge: Edge) -> None:
    key, asked = new_key(edge), Asked(edge)
    for _ in range(3):
        assert await over_http2(edge, key.items())
    assert asked.of == ASKED
    assert edge.upstreams.gateway.seen[-1]["x-weir-tenant"] == "acme"


async def test_grpc_callers_too_over_mtls_behind(edge: Edge) -> None:
    key, asked = new_key(edge), Asked(edge)
    async with edge.channel() as channel:
        for _ in range(3):
            call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(
                metadata=(("authorization", key["authorization"]),), timeout=5
            )
            await call.write(inference_pb2.GenerateRequest())
            assert isinstance(await call.read(), inference_pb2.GenerateResponse)
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
    assert asked.of == ASKED
    assert edge.upstreams.gateway.seen[-1]["x-weir-tenant"] == "acme"
    handshakes = await edge.envoy.counters(r"^cluster\.(gateway|edge-auth|ratelimit)\.ssl\.handshake$")
    assert len([count for count in handshakes.values() if count]) == 3


async def test_the_transcoder_behind_it_sets_the_status_of_known_callers(edge: Edge, http: httpx2.AsyncClient) -> None:
    async def limited(
        request: httpbody_pb2.HttpBody, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[httpbody_pb2.HttpBody]:
        await context.send_initial_metadata([("x-weir-http-status", "429"), ("retry-after", "3")])
        yield json_body('{"error":{"code":"quota_tokens"}}')

    key, asked = new_key(edge), Asked(edge)
    await chat(http, key)
    edge.upstreams.gateway.chat = limited
    answer = await http.post(CHAT, json={}, headers=key)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
    assert answer.json() == {"error": {"code": "quota_tokens"}}
    assert "x-weir-http-status" not in answer.headers
    assert asked.of == ASKED


async def test_a_verdict_is_of_one_credential_scope_protocol_and_address(edge: Edge, http: httpx2.AsyncClient) -> None:
    key, other = new_key(edge), new_key(edge)
    await chat(http, key)
    asked = Asked(edge)
    assert await chat(http, other) == 200
    assert asked.of[0] == 1
    await http.post("/v1/embeddings", json={}, headers=key)  # the stand-in for a gateway has none; who it is was asked
    assert asked.of[0] == 2
    async with client(edge, "127.0.0.2") as elsewhere:
        assert await chat(elsewhere, key) == 200
    assert asked.of[0] == 3
    assert await chat(http, {"authorization": key["authorization"] + "x"}) == 401
    assert await chat(http, {"api-key": key["authorization"]}) == 401
    assert asked.of[0] == 5


async def test_what_is_no_plain_generation_is_always_asked(edge: Edge, http: httpx2.AsyncClient) -> None:
    key = new_key(edge)
    for path in (f"{CHAT}?x=1", "/v1/models/weir-fast"):
        asked = Asked(edge)
        for _ in range(2):
            await (http.get if "models" in path else http.post)(path, headers=key)
        assert asked.of[0] == 2
    async with edge.channel() as channel:
        asked = Asked(edge)
        for _ in range(2):
            await inference_pb2_grpc.InferenceServiceStub(channel).CountTokens(
                inference_pb2.CountTokensRequest(), metadata=tuple(key.items()), timeout=5
            )
        assert asked.of[0] == 2


async def test_credentials_shown_twice_are_edge_auths_to_judge(edge: Edge) -> None:
    key = new_key(edge)["authorization"]
    assert await over_http2(edge, [("authorization", key)])
    for second in (key, "Bearer bad"):
        # Envoy joins these two: they are one other credential, which nobody knows.
        asked = Asked(edge)
        assert not await over_http2(edge, [("authorization", key), ("authorization", second)])
        assert asked.of[0] == 1
    for name in ("api-key", "x-api-key"):
        for number in range(1, 4):
            asked = Asked(edge)
            assert await over_http2(edge, [("authorization", key), (name, "a"), (name, "b")])
            assert asked.of[0] == 1, number


async def test_nobody_outside_says_who_he_is_or_what_is_to_be_asked(edge: Edge, http: httpx2.AsyncClient) -> None:
    key = new_key(edge)
    lies = {"x-weir-tenant": "evil", "x-weir-ask": "evil", "x-weir-refused": "1000000", "x-weir-request-counted": "1"}
    for _ in range(2):
        assert await chat(http, key, **lies) == 200
        seen = edge.upstreams.gateway.seen[-1]
        assert seen["x-weir-tenant"] == "acme"
        assert not seen.keys() & {"x-weir-ask", "x-weir-refused", "x-weir-request-counted"}
    assert "x-weir-refused" not in edge.upstreams.auth.seen[-1]


async def test_nobody_is_known_beyond_the_credentials_own_expiry(edge: Edge, http: httpx2.AsyncClient) -> None:
    for ttl, often in ((0, 3), (60_000, 1)):
        edge.upstreams.auth.learned = {"rev": LATEST, "ttl": ttl}
        key, asked = new_key(edge), Asked(edge)
        for _ in range(3):
            await chat(http, key)
        assert asked.of[0] == often
    # One that ends while it is known: good no more when it is asked about again, which is at once.
    edge.upstreams.auth.learned = {"rev": LATEST, "ttl": 300}
    key, asked = new_key(edge), Asked(edge)
    await chat(http, key)
    edge.upstreams.auth.good.discard(key["authorization"])
    began = asyncio.get_running_loop().time()
    while await chat(http, key) == 200:
        assert asyncio.get_running_loop().time() < began + 30.0, "it would be gone by for longer without its expiry"
    assert asked.of[0] == 2


async def test_a_revocation_that_is_pushed_over_ads_makes_everybody_unknown(
    edge: Edge, http: httpx2.AsyncClient
) -> None:
    key = new_key(edge)
    revision = (await edge.plane.store.get_prefix(keys.ROOT)).revision
    edge.upstreams.auth.learned = {"rev": revision, "ttl": 60_000}
    for _ in range(2):
        assert await chat(http, key) == 200
    edge.upstreams.auth.good.discard(key["authorization"])
    asked = Asked(edge)
    assert await chat(http, key) == 200, "nobody was told"
    edge.upstreams.auth.learned = {"rev": await pushed(edge), "ttl": 60_000}
    assert await chat(http, key) == 401
    assert asked.of[0] == 1


async def test_a_late_answer_does_not_bring_a_revoked_key_back(edge: Edge, http: httpx2.AsyncClient) -> None:
    began, go_on = held_up(edge)
    key = new_key(edge)
    revision = (await edge.plane.store.get_prefix(keys.ROOT)).revision
    edge.upstreams.auth.learned = {"rev": revision, "ttl": 60_000}
    async with asyncio.TaskGroup() as group:
        late = group.create_task(chat(http, key))
        await began.wait()  # edge-auth has said yes, and the answer, with which the edge learns that, is under way
        edge.upstreams.auth.good.discard(key["authorization"])
        edge.upstreams.auth.learned = {"rev": await pushed(edge), "ttl": 60_000}
        go_on.set()
        assert await late == 200
    assert await chat(http, key) == 401


async def test_a_late_answer_does_not_overrule_a_later_question(edge: Edge, http: httpx2.AsyncClient) -> None:
    """As above, where no revocation is pushed: a token whose issuer has withdrawn its key, or no control plane."""
    began, go_on = held_up(edge)
    key = new_key(edge)
    async with asyncio.TaskGroup() as group:
        late = group.create_task(chat(http, key))
        await began.wait()
        edge.upstreams.auth.good.discard(key["authorization"])
        assert await chat(http, key) == 401
        go_on.set()
        assert await late == 200
    assert await chat(http, key) == 401


async def test_a_restored_registry_makes_everybody_unknown(edge: Edge, http: httpx2.AsyncClient) -> None:
    key, asked = new_key(edge), Asked(edge)
    await chat(http, key)
    assert await chat(http, key) == 200
    assert asked.of[0] == 1
    view = edge.plane.control._view
    held, now = view._kvs.get(keys.EPOCH), await pushed(edge)
    await chat(http, key)
    await chat(http, key)
    assert asked.of[0] == 1, "verdicts of this test are of a later revision than any"
    try:
        # As after `weir restore`: the revision is lower than one that was pushed.
        view._kvs[keys.EPOCH] = type(view._kvs[keys.EPOCH])(keys.EPOCH, b"", now - 1, 0)
        edge.plane.control._publish(view.snapshot)
        async with asyncio.timeout(10):
            while asked.of[0] == 1:
                await chat(http, key)
    finally:
        if held is not None:
            await edge.plane.store.txn(puts=[Put(keys.EPOCH, b"again")])
