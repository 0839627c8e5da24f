"""What the limiter lets the edge pass without asking, and what happens while somebody is away, with a real Envoy."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest
import pytest_asyncio

from tests.support.fixtures.edge_fixtures import Edge, running_edge
from tests.support.known import CHAT, LATEST, PATIENT, Asked, client, edge_lua, held_up, new_key
from tests.support.upstreams import echo

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def edge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Edge]:
    """An edge whose grants last."""
    with edge_lua(**PATIENT, GRANT=1000):
        async with running_edge(tmp_path_factory.mktemp("grants")) as found:
            yield found


@pytest.fixture(autouse=True)
def fresh(edge: Edge) -> None:
    """Everybody is there and says yes."""
    edge.upstreams.gateway.chat = echo
    edge.upstreams.auth.learned = {"rev": LATEST, "ttl": 300_000}
    edge.upstreams.ratelimit.free = 0
    edge.upstreams.ratelimit.refuse = ""


@pytest_asyncio.fixture(loop_scope="module")
async def http(edge: Edge) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the plain listener."""
    async with client(edge) as found:
        yield found


async def chat(http: httpx2.AsyncClient, key: dict[str, str]) -> int:
    """The status of a chat."""
    return (await http.post(CHAT, json={}, headers=key)).status_code


async def known_key(edge: Edge, http: httpx2.AsyncClient) -> dict[str, str]:
    """A key whose caller is known."""
    key = new_key(edge)
    assert await chat(http, key) == 200
    return key


async def test_near_a_limit_the_limiter_is_asked_about_every_request_of_a_known_caller(
    edge: Edge, http: httpx2.AsyncClient
) -> None:
    key, asked = await known_key(edge, http), Asked(edge)
    for number in range(1, 6):
        assert await chat(http, key) == 200
        assert asked.of == (0, number)
    (descriptors,) = {
        tuple(tuple((entry.key, entry.value) for entry in each.entries) for each in request.descriptors)
        for request in edge.upstreams.ratelimit.seen[-5:]
    }
    assert descriptors == ((("tenant", "acme"),), (("tenant", "acme"), ("unit", "tokens")))
    edge.upstreams.ratelimit.refuse = "requests per minute are used up"
    answer = await http.post(CHAT, json={}, headers=key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "quota_requests")


async def test_a_grant_is_spent_request_by_request_by_all_keys_of_the_tenant(
    edge: Edge, http: httpx2.AsyncClient
) -> None:
    key, other = await known_key(edge, http), await known_key(edge, http)
    edge.upstreams.ratelimit.free = 3
    assert await chat(http, key) == 200
    edge.upstreams.ratelimit.free = 0
    asked = Asked(edge)
    for user, limiter in ((key, 0), (other, 0), (key, 0), (key, 1), (other, 2)):
        assert await chat(http, user) == 200
        assert asked.of == (0, limiter)


async def test_near_the_limit_a_grant_ends_at_once(edge: Edge, http: httpx2.AsyncClient) -> None:
    key = await known_key(edge, http)
    edge.upstreams.ratelimit.free = 1000
    await chat(http, key)
    asked = Asked(edge)
    await chat(http, key)
    assert asked.of == (0, 0)
    # A stranger's request, which is asked about in any case, brings the news.
    edge.upstreams.ratelimit.free = 0
    await chat(http, new_key(edge))
    asked = Asked(edge)
    await chat(http, key)
    assert asked.of == (0, 1)


async def test_a_late_answer_does_not_bring_back_what_the_limiter_let_pass_before(
    edge: Edge, http: httpx2.AsyncClient
) -> None:
    key = await known_key(edge, http)
    began, go_on = held_up(edge)
    edge.upstreams.ratelimit.free = 1000
    async with asyncio.TaskGroup() as group:
        late = group.create_task(chat(http, key))
        await began.wait()  # the limiter has let it and 1,000 more pass, and the answer that says so is under way
        edge.upstreams.gateway.chat = echo
        edge.upstreams.ratelimit.refuse = "requests per minute are used up"
        assert await chat(http, key) == 429
        go_on.set()
        assert await late == 200
    for number in range(1, 4):
        asked = Asked(edge)
        assert await chat(http, key) == 429, number
        assert asked.of == (0, 1)


async def test_one_asks_anew_while_the_others_go_on(tmp_path_factory: pytest.TempPathFactory) -> None:
    with edge_lua(FRESH=0, STALE=60_000, AGAIN=2000):
        async with running_edge(tmp_path_factory.mktemp("stale")) as edge, client(edge) as http:
            edge.upstreams.auth.learned = {"rev": LATEST, "ttl": 300_000}
            key = new_key(edge)
            await chat(http, key)
            asked = Asked(edge)
            edge.upstreams.auth.hold = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                while asked.of[0] == 0:
                    first = group.create_task(chat(http, key))
                    await asyncio.wait([first], timeout=0.1)  # until it is answered, or it is the one that asks
                for _ in range(3):
                    assert await chat(http, key) == 200
                assert asked.of[0] == 1
                edge.upstreams.auth.hold.set()
            assert first.result() == 200


async def test_without_edge_auth_known_callers_go_on_and_strangers_do_not(edge: Edge, http: httpx2.AsyncClient) -> None:
    async def arrived(present: bool) -> None:
        await edge.known("edge-auth", present=present)

    key = await known_key(edge, http)
    async with edge.upstreams.without("edge-auth", arrived):
        for _ in range(3):
            assert await chat(http, key) == 200
        for _ in range(2):  # what did not come is not remembered
            assert await chat(http, new_key(edge)) == 503
    assert await chat(http, new_key(edge)) == 200


async def test_nobody_is_known_for_longer_than_a_verdict_lasts(tmp_path_factory: pytest.TempPathFactory) -> None:
    with edge_lua(FRESH=0, STALE=0):
        async with running_edge(tmp_path_factory.mktemp("short")) as edge, client(edge) as http:
            edge.upstreams.auth.learned = {"rev": LATEST, "ttl": 300_000}
            key, asked = new_key(edge), Asked(edge)
            for number in range(1, 4):
                assert await chat(http, key) == 200
                assert asked.of[0] == number


async def test_without_the_limiter_everybody_passes_uncounted(edge: Edge, http: httpx2.AsyncClient) -> None:
    async def arrived(present: bool) -> None:
        await edge.known("ratelimit", present=present)

    key = await known_key(edge, http)
    async with edge.upstreams.without("ratelimit", arrived):
        for each in (key, new_key(edge), key):
            assert await chat(http, each) == 200
            assert "x-weir-request-counted" not in edge.upstreams.gateway.seen[-1]


async def test_without_the_control_plane_a_revoked_key_is_asked_about_before_long(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """As it is delivered, without a push."""
    with edge_lua():
        async with running_edge(tmp_path_factory.mktemp("delivered")) as edge, client(edge) as http:
            edge.upstreams.auth.learned = {"rev": LATEST, "ttl": 300_000}
            edge.upstreams.ratelimit.free = 1000
            key = new_key(edge)
            clock = asyncio.get_running_loop().time
            for _ in range(20):
                assert await chat(http, key) == 200
            edge.upstreams.auth.good.discard(key["authorization"])
            began = started = last = clock()
            while await chat(http, key) == 200:
                last, started = started, clock()
                assert last < began + 10
            assert last - began < 2.0, "when the last request that was served began"


async def test_it_can_be_switched_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with (
        running_edge(tmp_path_factory.mktemp("off"), known_callers=False) as edge,
        client(edge) as http,
    ):
        edge.upstreams.auth.learned = {"rev": LATEST, "ttl": 60_000}
        edge.upstreams.ratelimit.free = 1000
        key, asked = new_key(edge), Asked(edge)
        for number in range(1, 4):
            assert await chat(http, key) == 200
            assert asked.of == (number, number)
