"""Pages in browsers: preflights are answered by Envoy alone, and a page may read what it is given, refusals too."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import httpx2
import pytest
import pytest_asyncio

from services.controlplane.policy.cors import ALLOWED_HEADERS
from tests.support.fixtures.edge_fixtures import Edge, running_edge

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT, INFER = "/v1/chat/completions", "/v2/models/m/infer"
APP = "https://app.example.com"
ORIGIN = "access-control-allow-origin"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_edge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Edge]:
    """An edge that pages of some origins may call."""
    origins = (APP, "https://*.example.org", "http://localhost:3000")
    async with running_edge(tmp_path_factory.mktemp("cors"), cors=origins) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def page(open_edge: Edge) -> AsyncIterator[httpx2.AsyncClient]:
    """What a page calls with."""
    open_edge.upstreams.auth.seen.clear()
    open_edge.upstreams.ratelimit.seen.clear()
    open_edge.upstreams.ratelimit.refuse = ""
    async with httpx2.AsyncClient(base_url=open_edge.url, trust_env=False, timeout=10) as client:
        yield client


def preflight(origin: str, method: str = "POST") -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",
    }


@pytest.mark.parametrize("path", [CHAT, INFER, "/v1/models"])
async def test_a_preflight_needs_no_key_and_asks_nobody(open_edge: Edge, page: httpx2.AsyncClient, path: str) -> None:
    answer = await page.options(path, headers=preflight(APP))
    assert answer.status_code == 200
    assert answer.headers[ORIGIN] == APP
    assert answer.headers["access-control-allow-methods"] == "GET, POST"
    assert answer.headers["access-control-allow-headers"].split(", ") == list(ALLOWED_HEADERS)
    assert answer.headers["access-control-max-age"] == "7200"
    assert "access-control-allow-credentials" not in answer.headers
    assert not open_edge.upstreams.auth.seen
    assert not open_edge.upstreams.ratelimit.seen


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (APP, True),
        ("https://a.example.org", True),
        ("https://a.b-c.example.org", True),
        ("http://localhost:3000", True),
        ("http://app.example.com", False),
        ("https://app.example.com:444", False),
        ("https://app.example.com.evil.net", False),
        ("https://example.org", False),
        ("https://evilexample.org", False),
        ("https://a.example.org.evil.net", False),
        ("https://a.example_org", False),
        ("https://evil.net/.example.org", False),
        ("http://a.example.org", False),
        ("http://localhost:3001", False),
        ("null", False),
        ("*", False),
    ],
)
async def test_only_the_origins_of_the_setting_are_allowed(
    open_edge: Edge, page: httpx2.AsyncClient, origin: str, allowed: bool
) -> None:
    answer = await page.options(CHAT, headers=preflight(origin))
    assert answer.headers.get(ORIGIN) == (origin if allowed else None)
    assert not open_edge.upstreams.auth.seen
    called = await page.post(CHAT, json={}, headers={"origin": origin, "authorization": "Bearer good"})
    assert (called.status_code, called.headers.get(ORIGIN)) == (200, origin if allowed else None)


async def test_a_page_may_read_refusals_and_when_to_come_back(open_edge: Edge, page: httpx2.AsyncClient) -> None:
    open_edge.upstreams.ratelimit.refuse = "the limit is used up"
    refused = await page.post(CHAT, json={}, headers={"origin": APP, "authorization": "Bearer good"})
    stranger = await page.post(CHAT, json={}, headers={"origin": APP})
    open_edge.upstreams.ratelimit.refuse = ""
    nothing = await page.get(CHAT, headers={"origin": APP, "authorization": "Bearer good"})
    for answer, status in ((refused, 429), (stranger, 401), (nothing, 404)):
        assert (answer.status_code, answer.headers[ORIGIN]) == (status, APP)
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"x-request-id", "retry-after", "x-weir-reason", "x-weir-model-version"} <= set(exposed)
    told = {name for name in refused.headers if name.startswith(("x-weir-", "x-ratelimit-", "retry-"))}
    assert told - {"x-weir-code"} <= set(refused.headers["access-control-expose-headers"].split(", "))


async def test_the_admin_api_knows_no_pages(open_edge: Edge) -> None:
    context = ssl.create_default_context(cafile=str(open_edge.ca))
    async with httpx2.AsyncClient(verify=context, trust_env=False, timeout=10) as client:
        url = f"https://localhost:{open_edge.admin_port}/admin/v1/resources:apply"
        answer = await client.options(url, headers=preflight(APP))
    assert answer.status_code == 401
    assert ORIGIN not in answer.headers


async def test_by_default_there_is_nothing(edge: Edge, http: httpx2.AsyncClient) -> None:
    answer = await http.options(CHAT, headers={**preflight(APP), "authorization": ""})
    assert answer.status_code == 401
    called = await http.post(CHAT, json={}, headers={"origin": APP})
    for each in (answer, called):
        assert not [name for name in each.headers if name.startswith("access-control-")]
