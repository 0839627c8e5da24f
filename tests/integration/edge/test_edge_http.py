"""The HTTP face of the edge, with a real Envoy: streaming, statuses, envelopes, identity, limits."""

import asyncio
import gzip
import json
import ssl

import httpx2
import pytest
from google.api import httpbody_pb2

from tests.support.fixtures.edge_fixtures import Edge
from tests.support.upstreams import echo, event, json_body

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


@pytest.fixture(autouse=True)
def fresh(edge: Edge) -> None:
    """Each test begins with plain upstreams and empty records."""
    edge.upstreams.gateway.chat = echo
    edge.upstreams.gateway.seen.clear()
    edge.upstreams.auth.seen.clear()
    edge.upstreams.auth.tokens = "12"
    edge.upstreams.auth.hold = None
    edge.upstreams.ratelimit.seen.clear()
    edge.upstreams.ratelimit.refuse = ""


def assert_envelope(response: httpx2.Response, status: int, kind: str, code: str) -> None:
    """The OpenAI error envelope, whole."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json"), response.text
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (kind, code, None)
    assert error["message"]
    assert response.headers["x-request-id"]


async def test_events_leave_one_by_one(edge: Edge, http: httpx2.AsyncClient) -> None:
    step = asyncio.Event()

    async def chat(request, context):
        for number in range(3):
            yield event(str(number))
            await step.wait()
            step.clear()
        yield event("[DONE]")

    edge.upstreams.gateway.chat = chat
    async with http.stream("POST", CHAT, json={"stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        chunks = response.aiter_raw()
        for number in range(3):
            # The next event exists only after this one has been read here.
            assert await anext(chunks) == f"data: {number}\n\n".encode()
            step.set()
        assert [chunk async for chunk in chunks] == [b"data: [DONE]\n\n"]


async def test_a_vanished_client_cancels_the_call(edge: Edge, http: httpx2.AsyncClient) -> None:
    cancelled = asyncio.Event()

    async def chat(request, context):
        yield event("1")
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    edge.upstreams.gateway.chat = chat
    async with http.stream("POST", CHAT, json={}) as response:
        await anext(response.aiter_raw())
    await asyncio.wait_for(cancelled.wait(), 5)


async def test_a_slow_reader_pauses_the_gateway(edge: Edge) -> None:
    part, total, sent = b"x" * 65_536, 1024, 0

    async def chat(request, context):
        nonlocal sent
        for _ in range(total):
            yield httpbody_pb2.HttpBody(content_type="text/event-stream", data=part)
            sent += 1

    edge.upstreams.gateway.chat = chat
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.http_port, limit=4096)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nhost: edge\r\nauthorization: Bearer good\r\ncontent-length: 2\r\n\r\n{{}}".encode()
    )
    await reader.readline()
    paused = "cluster.gateway.upstream_flow_control_paused_reading_total"
    await edge.envoy.wait_counter(paused, lambda value: value > 0)
    assert sent < total // 2, "64 MB are offered; sockets and Envoy may hold a few"
    async with asyncio.timeout(20):
        while sent < total:
            await reader.read(1 << 20)
    writer.close()


async def test_the_gateway_sets_the_status(edge: Edge, http: httpx2.AsyncClient) -> None:
    async def chat(request, context):
        await context.send_initial_metadata([("x-weir-http-status", "429"), ("retry-after", "3")])
        yield json_body('{"error":{"code":"quota_tokens"}}')

    edge.upstreams.gateway.chat = chat
    response = await http.post(CHAT, json={})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert "x-weir-http-status" not in response.headers
    assert response.json() == {"error": {"code": "quota_tokens"}}


@pytest.mark.parametrize("status", ["abc", "99", "700", ""])
async def test_a_senseless_status_is_ignored(edge: Edge, http: httpx2.AsyncClient, status: str) -> None:
    async def chat(request, context):
        await context.send_initial_metadata([("x-weir-http-status", status)])
        yield json_body("{}")

    edge.upstreams.gateway.chat = chat
    response = await http.post(CHAT, json={})
    assert response.status_code == 200
    assert "x-weir-http-status" not in response.headers


async def test_identity_comes_from_edge_auth_alone(edge: Edge, http: httpx2.AsyncClient) -> None:
    forged = {
        "X-Weir-Tenant": "globex",
        "x-weir-scopes": "admin",
        "x-weir-anything": "1",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-request-id": "mine",
        "api-key": "one",
        "x-api-key": "two",
    }
    response = await http.post(CHAT, json={}, headers=forged)
    assert response.status_code == 200
    (seen,) = edge.upstreams.gateway.seen
    assert (seen["x-weir-tenant"], seen["x-weir-scopes"], seen["x-weir-key-id"]) == ("acme", "inference", "k1")
    assert "x-weir-anything" not in seen
    assert not {"authorization", "api-key", "x-api-key"} & set(seen)
    assert seen["x-request-id"] == response.headers["x-request-id"] != "mine"
    (asked,) = edge.upstreams.auth.seen
    assert not [name for name in asked if name.startswith("x-weir-")]
    assert (asked["content-length"], asked["api-key"], asked["x-api-key"]) == ("2", "one", "two")


async def test_denials_of_edge_auth_pass_unchanged(edge: Edge, http: httpx2.AsyncClient) -> None:
    response = await http.post(CHAT, json={}, headers={"authorization": "Bearer bad"})
    assert response.status_code == 401
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {"error": {"code": "invalid_api_key"}}
    assert not edge.upstreams.gateway.seen


async def test_without_edge_auth_nobody_passes(edge: Edge, http: httpx2.AsyncClient) -> None:
    async def arrived(present: bool) -> None:
        await edge.known("edge-auth", present=present)

    async with edge.upstreams.without("edge-auth", arrived):
        response = await http.post(CHAT, json={})
        assert_envelope(response, 503, "server_error", "dependency_unavailable")
        assert response.headers["retry-after"] == "1"
        assert (await http.get("/healthz")).text == "ok\n"
    assert (await http.post(CHAT, json={})).status_code == 200
    assert len(edge.upstreams.gateway.seen) == 1


async def test_a_silent_edge_auth_closes_the_edge(edge: Edge, http: httpx2.AsyncClient) -> None:
    edge.upstreams.auth.hold = asyncio.Event()
    response = await http.post(CHAT, json={})
    assert_envelope(response, 503, "server_error", "dependency_unavailable")
    edge.upstreams.auth.hold.set()


async def test_without_ratelimit_the_mesh_decides(edge: Edge, http: httpx2.AsyncClient) -> None:
    async def arrived(present: bool) -> None:
        await edge.known("ratelimit", present=present)

    async with edge.upstreams.without("ratelimit", arrived):
        assert (await http.post(CHAT, json={})).status_code == 200


async def test_without_gateway_the_envelope_says_when_to_return(edge: Edge, http: httpx2.AsyncClient) -> None:
    async def arrived(present: bool) -> None:
        await edge.known("gateway", present=present)

    async with edge.upstreams.without("gateway", arrived):
        response = await http.post(CHAT, json={})
        assert_envelope(response, 503, "server_error", "dependency_unavailable")
        assert response.headers["retry-after"] == "1"


async def test_rate_limit_descriptors_and_headers(edge: Edge, http: httpx2.AsyncClient) -> None:
    response = await http.post(CHAT, json={})
    assert response.headers["x-ratelimit-limit-requests"] == "60"
    (asked,) = edge.upstreams.ratelimit.seen
    assert asked.domain == "weir-edge"
    entries = [[(entry.key, entry.value) for entry in descriptor.entries] for descriptor in asked.descriptors]
    assert entries == [[("tenant", "acme")], [("tenant", "acme"), ("unit", "tokens")]]
    assert not asked.descriptors[0].HasField("hits_addend")
    assert asked.descriptors[1].hits_addend.value == 12


async def test_no_estimate_costs_a_request_all_the_same(edge: Edge, http: httpx2.AsyncClient) -> None:
    edge.upstreams.auth.tokens = ""
    assert (await http.post(CHAT, json={})).status_code == 200
    (asked,) = edge.upstreams.ratelimit.seen
    assert [(entry.key, entry.value) for entry in asked.descriptors[0].entries] == [("tenant", "acme")]


@pytest.mark.parametrize("reason", ["QUOTA_TOKENS", "REJECTED_OVERLOAD"])
async def test_over_the_limit_is_an_envelope_with_the_limiters_reason(
    edge: Edge, http: httpx2.AsyncClient, reason: str
) -> None:
    limiter = edge.upstreams.ratelimit
    limiter.refuse, limiter.reason = 'the limit "requests per minute" is used up', reason
    response = await http.post(CHAT, json={})
    assert_envelope(response, 429, "rate_limit_error", reason.lower())
    assert response.headers["x-weir-reason"] == reason
    assert response.json()["error"]["message"] == 'the limit "requests per minute" is used up'
    assert response.headers["retry-after"] == "7"


async def test_reading_models_costs_no_quota(edge: Edge, http: httpx2.AsyncClient) -> None:
    for spelling in ("weir-fast@1", "weir-fast%401"):
        assert (await http.get(f"/v1/models/{spelling}")).json() == {"id": "weir-fast@1"}
    assert not edge.upstreams.ratelimit.seen


async def test_a_status_is_read_at_a_path_of_its_own_and_costs_no_quota(edge: Edge, http: httpx2.AsyncClient) -> None:
    assert (await http.get("/v1/status")).json() == {"object": "status"}
    assert not edge.upstreams.ratelimit.seen
    assert_envelope(await http.post("/v1/status", json={}), 404, "invalid_request_error", "not_found")


@pytest.mark.parametrize("chunked", [False, True])
async def test_large_bodies_are_refused(edge: Edge, http: httpx2.AsyncClient, chunked: bool) -> None:
    async def parts():
        for _ in range(10):
            yield b"x" * 10_000

    body = parts() if chunked else b"x" * 100_000
    response = await http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert_envelope(response, 413, "invalid_request_error", "payload_too_large")
    assert not edge.upstreams.gateway.seen


async def test_bodies_up_to_the_limit_pass(edge: Edge, http: httpx2.AsyncClient) -> None:
    response = await http.post(CHAT, content=b"x" * 60_000)
    assert response.json() == {"bytes": 60_000}


async def test_compressed_bodies_pass_as_they_are_and_say_so(edge: Edge, http: httpx2.AsyncClient) -> None:
    """What they hold is for the gateway to read, within its own bounds; nothing of strangers is unpacked."""
    body = gzip.compress(b"x" * 50_000)
    response = await http.post(CHAT, content=body, headers={"content-encoding": "gzip"})
    assert response.json() == {"bytes": len(body)}
    assert edge.upstreams.gateway.seen[-1]["content-encoding"] == "gzip"


async def test_large_headers_are_refused(edge: Edge, http: httpx2.AsyncClient) -> None:
    response = await http.post(CHAT, json={}, headers={"x-big": "x" * 40_000})
    assert_envelope(response, 431, "invalid_request_error", "payload_too_large")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/nothing"), ("POST", "/v1/nothing"), ("GET", "/"), ("GET", CHAT)]
)
async def test_unknown_paths(edge: Edge, http: httpx2.AsyncClient, method: str, path: str) -> None:
    response = await http.request(method, path)
    assert_envelope(response, 404, "invalid_request_error", "not_found")


async def test_strangers_learn_nothing_of_paths(edge: Edge, http: httpx2.AsyncClient) -> None:
    response = await http.get("/nothing", headers={"authorization": ""})
    assert response.status_code == 404
    assert not edge.upstreams.auth.seen


async def test_admin_api_is_transcoded(edge: Edge, admin: httpx2.AsyncClient) -> None:
    alias = {"targets": [{"model_version": "weir-fast@1", "weight": 100}]}
    body = {"resources": [{"metadata": {"name": "weir-fast"}, "alias": alias}]}
    response = await admin.post("/admin/v1/resources:apply", json=body)
    assert response.status_code == 200, response.text
    [result] = response.json()["results"]
    assert (result["resource"]["kind"], result["resource"]["name"]) == ("Alias", "weir-fast")
    assert result["outcome"] == "OUTCOME_CREATED"


async def test_a_plain_abort_has_its_status(edge: Edge, admin: httpx2.AsyncClient) -> None:
    response = await admin.get("/admin/v1/resources/Limits/acme/*")
    assert response.status_code == 403
    assert "scope admin is missing" in response.text


async def test_malformed_admin_bodies_are_envelopes(edge: Edge, admin: httpx2.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    response = await admin.post("/admin/v1/resources:apply", content=b"{", headers=headers)
    assert_envelope(response, 400, "invalid_request_error", "invalid_request")


async def test_tls_listener(edge: Edge) -> None:
    context = ssl.create_default_context(cafile=str(edge.ca))
    async with httpx2.AsyncClient(verify=context, trust_env=False) as client:
        response = await client.get(f"https://localhost:{edge.https_port}/healthz")
    assert response.text == "ok\n"


async def test_the_access_log_tells_no_secrets(edge: Edge, http: httpx2.AsyncClient) -> None:
    response = await http.post(f"{CHAT}?q=private", json={"prompt": "private words"})
    line = await edge.envoy.access_line(response.headers["x-request-id"])
    assert (line["tenant"], line["status"], line["route"], line["upstream"]) == ("acme", 200, CHAT, "gateway")
    assert "private" not in json.dumps(line)
    assert "good" not in json.dumps(line)


async def test_requests_with_an_idempotency_key_go_by_it_and_all_others_by_load(
    edge: Edge, http: httpx2.AsyncClient
) -> None:
    async def sent() -> tuple[int, int]:
        found = await edge.envoy.counters(r"^cluster\.gateway(-keyed)?\.upstream_rq_total$")
        return found.get("cluster.gateway.upstream_rq_total", 0), found.get(
            "cluster.gateway-keyed.upstream_rq_total", 0
        )

    by_load, by_key = await sent()
    key = {"idempotency-key": "order 7"}
    for path, headers in ((CHAT, {}), (CHAT, key), (CHAT, key | {"last-event-id": "abc"}), (EMBED, key)):
        response = await http.post(path, json={}, headers=headers)
        assert response.status_code == 200
        seen = edge.upstreams.gateway.seen[-1]
        assert {name: seen[name] for name in headers} == headers
        assert seen["x-weir-tenant"] == "acme"
    assert await sent() == (by_load + 1, by_key + 3)
