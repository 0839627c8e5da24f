"""Floods, and errors in `edge.lua` itself, with a real Envoy."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator

import grpc
import httpx2
import pytest
import pytest_asyncio

from services.controlplane.policy import filters
from tests.support.fixtures.edge_fixtures import Edge, running_edge
from tests.support.known import CHAT, LATEST, PATIENT, Asked, client, edge_lua, held_up, new_key, over_http2, pushed
from tests.support.upstreams import echo

pytestmark = pytest.mark.asyncio(loop_scope="module")
FAILURES = 5
TRIES = """
local on_request = envoy_on_request

local function held(from)
  local count = 0
  for _ in pairs(from.young) do count = count + 1 end
  for _ in pairs(from.old) do count = count + 1 end
  return count
end

local tries = {
  grants = function()
    local said = {}
    learn_grant("slow", {free = 9, ms = 1000}, 500, 2000)
    for _, now in ipairs({2000, 3499, 3500}) do said[#said + 1] = tostring(granted("slow", now)) end
    learn_grant("slow", {free = 0, ms = 1000}, 4000, 4001)
    learn_grant("slow", {free = 9, ms = 1000}, 3999, 4002)
    said[#said + 1] = tostring(granted("slow", 4002))
    learn_grant("slow", {free = 9, ms = 1000}, 100, 101) -- the clock was set back
    said[#said + 1] = tostring(granted("slow", 102))
    return table.concat(said, " ")
  end,
  later = function(handle)
    local by = tonumber(handle:headers():get("x-later"))
    aged = aged - by
    for _, slot in pairs(waiting) do slot.at = slot.at - by end
  end,
  holds = function(handle)
    local secret = handle:headers():get("x-secret")
    for _, each in ipairs({known.young, known.old, refused.young, refused.old, places.young, places.old}) do
      for name in pairs(each) do if string.find(name, secret, 1, true) then return "remembered" end end
    end
    for _, slot in pairs(waiting) do
      if slot.name ~= nil and string.find(slot.name, secret, 1, true) then return "awaited" end
    end
    return "forgotten"
  end,
  source = function(handle) return source(handle:headers():get("x-address")) end,
  flood = function()
    local bytes = collectgarbage("count")
    for number = 1, 200000 do put(refused, "name " .. number, {at = 1}) end
    for number = 1, 200000 do failed("source " .. number, 1) unheard("source " .. number) end
    for number = 1, 200000 do learn_grant("tenant " .. number, {free = 1, ms = 1}, 1, 1) end
    local sources, silent_sources, granted_tenants = 0, 0, 0
    for _ in pairs(failures) do sources = sources + 1 end
    for _ in pairs(unsaid) do silent_sources = silent_sources + 1 end
    for _ in pairs(grants) do granted_tenants = granted_tenants + 1 end
    local most = math.max(sources, silent_sources, granted_tenants)
    collectgarbage()
    return held(refused) .. " " .. held(known) .. " " .. most .. " " .. collectgarbage("count") - bytes
  end,
  hash = function()
    -- LuaJIT's quick hash of a string looks at its ends and at two places in it: these are all alike there.
    local function seconds(make)
      local kept, began = {}, os.clock()
      for number = 1, 30000 do kept[number] = make(number) end
      return os.clock() - began
    end
    local same = string.rep("a", 40)
    local alike = seconds(function(number) return same .. string.format("%08d", number) .. same end)
    local others = seconds(function(number) return string.format("%08d", number) .. same .. same end)
    return alike .. " " .. others
  end,
}

function envoy_on_request(handle)
  local try = tries[handle:headers():get("x-try")]
  if try ~= nil then return handle:respond({[":status"] = "200"}, try(handle) or "") end
  return on_request(handle)
end
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Edge]:
    """An edge that counts strangers' failures over the whole test."""
    with edge_lua(TRIES, **PATIENT, FAILURES=FAILURES, WINDOW=3_600_000):
        async with running_edge(tmp_path_factory.mktemp("floods")) as found:
            found.upstreams.auth.learned = {"rev": LATEST, "ttl": 60_000}
            found.upstreams.ratelimit.free = 1000
            yield found


async def bad(http: httpx2.AsyncClient, key: str = "") -> httpx2.Response:
    """The answer to a bad key: by default one that nobody has shown before."""
    return await http.post(CHAT, json={}, headers={"authorization": f"Bearer {key or secrets.token_hex(16)}"})


async def tried(edge: Edge, try_: str, **headers: str) -> str:
    """What a trial in Lua says."""
    async with client(edge) as http:
        return (await http.post(CHAT, headers={"x-try": try_, **headers})).text


async def test_a_refusal_is_repeated_word_for_word_and_asked_once(edge: Edge) -> None:
    async with client(edge, "127.0.1.1") as http:
        asked = Asked(edge)
        first, *others = [await bad(http, "known to be bad") for _ in range(4)]
        assert asked.of == (1, 0)
        for other in others:
            assert (other.status_code, other.content) == (401, first.content)
            assert other.headers["content-type"] == first.headers["content-type"] == "application/json"
            assert other.headers["www-authenticate"] == "Bearer"
            assert other.headers["x-request-id"] != first.headers["x-request-id"]
            assert "connection" not in other.headers, "it stays open for the next request"
        large = await http.post(CHAT, content=b"x" * 20_000, headers={"authorization": "Bearer known to be bad"})
        assert (large.status_code, large.headers["connection"]) == (401, "close")
        assert asked.of == (1, 0)


async def test_over_http2_a_refusal_waits_for_no_body(edge: Edge) -> None:
    """Else whoever has no key holds as many streams as he likes."""
    shown = [("authorization", "Bearer bad over http2")]
    asked = Asked(edge)
    for withheld in (False, True, True):
        assert not await over_http2(edge, shown, withheld=withheld)
    assert asked.of == (1, 0)


async def test_grpc_callers_are_refused_as_such(edge: Edge) -> None:
    asked = Asked(edge)
    async with edge.channel() as channel:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.stream_stream("/weir.inference.v1.InferenceService/Generate")(
                    metadata=(("authorization", "Bearer bad over grpc"),), timeout=5
                ).read()
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAUTHENTICATED, "no such key")
    assert asked.of == (1, 0)


async def test_a_flood_of_bad_keys_is_not_asked_about_and_holds_up_nobody_who_is_known(edge: Edge) -> None:
    key, revision = new_key(edge), await pushed(edge)
    async with client(edge, "127.0.1.2") as http, client(edge, "127.0.1.3") as elsewhere:
        edge.upstreams.auth.learned = {"rev": revision, "ttl": 60_000}
        assert (await http.post(CHAT, json={}, headers=key)).status_code == 200
        edge.upstreams.auth.learned = {"rev": LATEST, "ttl": 60_000}
        asked = Asked(edge)
        answers = [await bad(http) for _ in range(10 * FAILURES)]
        assert asked.of[0] == FAILURES
        assert [answer.status_code for answer in answers] == [401] * FAILURES + [429] * 9 * FAILURES
        assert not [answer for answer in answers if "connection" in answer.headers]
        error = answers[-1].json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rejected_overload")
        assert int(answers[-1].headers["retry-after"]) > 0
        asked = Asked(edge)
        assert (await http.post(CHAT, json={}, headers=key)).status_code == 200
        assert asked.of[0] == 0
        # Nor anybody who was known before a revocation of somebody else's key.
        await pushed(edge)
        assert (await http.post(CHAT, json={}, headers=key)).status_code == 200
        assert asked.of[0] == 1
        assert (await http.post(CHAT, json={}, headers=new_key(edge))).status_code == 429
        assert (await bad(elsewhere)).status_code == 401, "another source"


async def test_edge_auth_is_told_of_refusals_that_it_was_not_asked_about(edge: Edge) -> None:
    async with client(edge, "127.0.1.4") as http:
        for _ in range(6):
            await bad(http, "again and again")
        await bad(http)
        assert edge.upstreams.auth.seen[-1]["x-weir-refused"] == "5"
        await bad(http)
        assert "x-weir-refused" not in edge.upstreams.auth.seen[-1]
        assert await over_http2(edge, new_key(edge).items())
        assert "x-weir-refused" not in edge.upstreams.gateway.seen[-1]


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.1:4711", "192.0.2.1"),
        ("[2001:db8:1:2:3:4:5:6]:4711", "2001:db8:1:2"),
        ("[2001:db8::1]:4711", "2001:db8:0:0"),
        ("[2001:db8:1:2::]:4711", "2001:db8:1:2"),
        ("[::1]:4711", "0:0:0:0"),
        ("[1:2:3::4:5:6:7]:4711", "1:2:3:0"),
        ("[::ffff:192.0.2.1]:4711", "::ffff:192.0.2.1"),
    ],
)
async def test_a_source_is_an_ipv4_address_or_an_ipv6_network(edge: Edge, address: str, source: str) -> None:
    assert await tried(edge, "source", **{"x-address": address}) == source


async def test_memory_is_bounded_whoever_comes(edge: Edge) -> None:
    refused, known, others, kib = map(float, (await tried(edge, "flood")).split())
    assert 100 < refused < 2 * 262_144 / 512 + 2
    assert known < 100
    assert others <= 10_000
    assert kib < 8_000


async def test_a_grant_lasts_from_its_question_and_yields_to_none_of_before(edge: Edge) -> None:
    assert await tried(edge, "grants") == "true true false false true"


async def held(edge: Edge, *shown: str) -> list[str]:
    """Whether credentials are in the memory of the edge."""
    return [await tried(edge, "holds", **{"x-secret": each}) for each in shown]


async def pass_by(edge: Edge, http: httpx2.AsyncClient, seconds: int) -> None:
    """Later there is a request of which nothing is remembered."""
    await tried(edge, "later", **{"x-later": str(1000 * seconds)})
    await http.get("/v1/models/weir-fast")


@pytest.mark.parametrize(("seconds", "requests"), [(121, 2), (241, 1)])
async def test_credentials_leave_a_quiet_memory(edge: Edge, seconds: int, requests: int) -> None:
    key, wrong = new_key(edge), f"typed by mistake {seconds}"
    shown = (key["authorization"], wrong)
    async with client(edge) as http:
        await http.post(CHAT, json={}, headers=key)
        await bad(http, wrong)
        for _ in range(requests):
            assert await held(edge, *shown) == ["remembered"] * 2
            await pass_by(edge, http, seconds)
        assert await held(edge, *shown) == ["forgotten"] * 2


async def test_credentials_of_requests_that_were_broken_off_leave_too(edge: Edge) -> None:
    key = new_key(edge)
    began, _ = held_up(edge)
    try:
        async with client(edge) as http, asyncio.TaskGroup() as group:
            broken_off = group.create_task(http.post(CHAT, json={}, headers=key))
            await began.wait()
            broken_off.cancel()
    finally:
        edge.upstreams.gateway.chat = echo
    async with client(edge) as http:
        assert await held(edge, key["authorization"]) == ["awaited"]
        await pass_by(edge, http, 121)
        assert await held(edge, key["authorization"]) == ["forgotten"]


async def test_credentials_that_hash_alike_cost_no_more_than_others(edge: Edge) -> None:
    alike, others = map(float, (await tried(edge, "hash")).split())
    assert alike < 10 * others + 0.1


async def test_errors_in_lua_leave_it_to_edge_auth(tmp_path_factory: pytest.TempPathFactory) -> None:
    """At the worst moment: everything is said but the last word."""
    last = '  metadata:set("weir.edge", "known", true)\n'
    assert filters._LUA.count(last) == 1
    with edge_lua(**PATIENT), pytest.MonkeyPatch.context() as patch:
        evil = '  headers:replace("x-weir-tenant", "evil") error("x")\n'
        patch.setattr(filters, "_LUA", filters._LUA.replace(last, evil))
        async with running_edge(tmp_path_factory.mktemp("broken")) as edge, client(edge) as http:
            edge.upstreams.auth.learned = {"rev": LATEST, "ttl": 60_000}
            edge.upstreams.ratelimit.free = 1000
            key, asked = new_key(edge), Asked(edge)
            for number in range(1, 4):
                assert (await http.post(CHAT, json={}, headers=key)).status_code == 200
                assert asked.of[0] == number
                assert edge.upstreams.gateway.seen[-1]["x-weir-tenant"] == "acme"
            edge.upstreams.auth.good.discard(key["authorization"])
            assert (await http.post(CHAT, json={}, headers=key)).status_code == 401
            assert (await edge.envoy.counters("lua.errors"))["http.edge-http.lua.errors"] >= 3


async def test_an_error_while_learning_costs_no_answer(tmp_path_factory: pytest.TempPathFactory) -> None:
    with edge_lua('function envoy_on_response(handle) take_status(handle:headers()) error("x") end'):
        async with running_edge(tmp_path_factory.mktemp("forgetful")) as edge, client(edge) as http:
            edge.upstreams.auth.learned = {"rev": LATEST, "ttl": 60_000}
            key, asked = new_key(edge), Asked(edge)
            for number in range(1, 4):
                answer = await http.post(CHAT, json={}, headers=key)
                assert (answer.status_code, json.loads(answer.content)) == (200, {"bytes": 2})
                assert asked.of[0] == number
