"""What stands behind the peers, and what is said of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
from pathlib import Path

import pytest

from loadtest import added_ttft, bench_peers, shortcuts
from loadtest.bench_peers import Bench, Extent, Way, beside
from loadtest.figures import NothingFoundError
from loadtest.http_client import post
from loadtest.overload import output
from loadtest.peers import contenders, upstream
from loadtest.scenarios import Cost, Edge, EdgeSender, LoadError, requests_closed_loop

WHOLE = b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"


@pytest.mark.parametrize("request_", [WHOLE, CHUNKED, post("host", "/", "key", b"{}", headers=[("x-more", "1")])])
def test_a_request_is_taken_when_it_is_whole_and_what_follows_is_left(request_: bytes) -> None:
    assert all(upstream.take(request_[:length]) is None for length in range(len(request_)))
    assert upstream.take(request_ + b"POST") == (b"{}", b"POST")


async def test_the_load_finds_whole_answers_there() -> None:
    server = await asyncio.get_running_loop().create_server(upstream.Upstream, "127.0.0.1", 0)
    async with server:
        edge = Edge("127.0.0.1", server.sockets[0].getsockname()[1], ("key",), {"self": os.getpid()}, (), model="peer")
        cost = await requests_closed_loop(edge, connections=4, seconds=0.1, max_tokens=3)
        sender = EdgeSender(edge, max_tokens=4)
        reply = await sender.reply()
        sender.close()
    assert cost.units > 0
    assert not reply.fault(4)
    assert len(reply.events) == 4 + 2  # the end and the usage


def test_what_is_not_installed_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEERS_ENV", str(tmp_path))
    assert {name: bool(contenders.version(name)) for name in contenders.CONTENDERS} == {
        "upstream": True,
        "envoy": True,
        "litellm": False,
        "portkey": False,
    }


def test_the_locks_name_what_is_written_about_them() -> None:
    folder = Path(contenders.__file__).parent
    package = json.loads((folder / "portkey" / "package.json").read_text())
    locked = json.loads((folder / "portkey" / "package-lock.json").read_text())["packages"]
    assert locked["node_modules/@portkey-ai/gateway"]["version"] == package["dependencies"]["@portkey-ai/gateway"]
    assert not any("resolved" in each for each in locked.values())  # a place of whoever wrote the lock
    assert "\nlitellm==1.106.2 \\\n" in (folder / "litellm.lock").read_text()


async def test_what_is_paced_comes_at_its_pace() -> None:
    server = await asyncio.get_running_loop().create_server(upstream.Upstream, "127.0.0.1", 0)
    async with server:
        edge = Edge("127.0.0.1", server.sockets[0].getsockname()[1], ("key",), {}, (), model=upstream.PACED)
        sender = EdgeSender(edge, max_tokens=4)
        reply = await sender.reply()
        sender.close()
    assert not reply.fault(4)
    assert reply.events[3] - reply.events[0] >= 3 * upstream.INTERVAL - 0.001


def cost(cpu: float) -> Cost:
    """A window of a hundred requests."""
    return Cost(units=100, wall=1.0, cpu={"gateway": cpu}, rss={"gateway": 1})


def way(name: str, costs: list[float], paced: list[float]) -> Way:
    """A gateway of which so much is known."""
    edge = Edge("host", 1, (), {}, ())
    return Way(name, lambda: edge, "upstream", costs=[*map(cost, costs)], paced=[*map(cost, paced)])


def test_what_the_mesh_costs_beside_another_is_a_ratio_of_each_turn() -> None:
    ours = way("weir", [2.0, 4.0], [1.0])
    assert beside(ours, way("litellm", [4.0, 8.0], [4.0])) == {
        "cpu_ratio_c64_litellm": [0.5, 0.5],
        "cpu_ratio_paced_litellm": [0.25],
    }
    assert beside(ours, way("gone", [4.0], [])) == {}, "it was left out after a turn"


async def test_shares_are_of_the_requests_between_two_looks() -> None:
    before = dict.fromkeys(("requests", "asked", "by_limiter", "by_gateway", "on_credit"), 5.0)
    after = {"requests": 105.0, "asked": 15.0, "by_limiter": 30.0, "by_gateway": 80.0, "on_credit": 45.0}
    assert shortcuts.shares(before, after) == {
        "edge_known_share": 0.9,
        "allowance_share": 0.75,
        "credit_share": 0.4,
    }
    assert math.isnan(shortcuts.shares(before, before)["credit_share"])


async def test_counters_are_read_of_the_services_that_have_them() -> None:
    text = {
        "gateway": 'weir_gateway_outcomes_total{outcome="ok"} 3.0\nweir_gateway_outcomes_total{outcome="error"} 1.0',
        "edge-auth": 'weir_edge_auth_checks_total{outcome="ok"} 2.0\nweir_edge_auth_checks_created{outcome="ok"} 9.0',
        "ratelimit": 'weir_ratelimit_granted_total{by="limiter"} 5.0\nweir_ratelimit_granted_total{by="gateway"} 6.0',
        "admission": 'weir_admission_credits_total{pool="p",fate="used"} 7.0',
    }
    async with contextlib.AsyncExitStack() as stack:
        services = {}
        for service, body in text.items():

            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: str = body) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + body.encode())
                await writer.drain()
                writer.close()

            server = await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", 0))
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            services[f"{service}-0"] = {"service": service, "metrics": address}
        counts = await shortcuts.read(services)
        with pytest.raises(LookupError, match="no edge-auth"):
            await shortcuts.read({name: each for name, each in services.items() if name != "edge-auth-0"})
    assert counts == {"requests": 4.0, "asked": 2.0, "by_limiter": 5.0, "by_gateway": 6.0, "on_credit": 7.0}


async def test_a_gateway_whose_requests_fail_is_left_out_from_there_on_and_makes_the_bench_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cost_of(edge: Edge, seconds: float) -> Cost:
        if edge.host == "refuses":
            raise LoadError("64 of 64 answers failed")
        return cost(1.0)

    async def round_of(calls: dict[str, object], **_: object) -> dict[str, list[float]]:
        return {name: [0.002] for name in calls} | {"upstream": [0.001]}

    monkeypatch.setattr(bench_peers, "cost_of", cost_of)
    monkeypatch.setattr(added_ttft, "round_of", round_of)
    parts = output.Parts()
    bench = Bench(Extent(1.0, 1.0, repeats=2), parts)
    for name in ("refuses", "serves"):
        edge = Edge(name, 1, ("key",), {}, ())
        bench.ways.append(Way(name, lambda edge=edge: edge, "upstream"))
    await bench.unpaced()
    assert parts.failed == {"c64 refuses": "LoadError: 64 of 64 answers failed"}
    assert [way.name for way in bench.ways] == ["serves"]
    assert bench.figures()["cpu_ms_per_request_c64_serves"] == 10.0
    assert len(bench.ways[0].costs) == len(bench.ways[0].rows) == 2


def test_what_makes_the_mesh_cheap_has_to_be_in_force() -> None:
    bench = Bench(Extent(1.0, 1.0, 1), output.Parts())
    bench.in_force()  # without a mesh nothing is asked
    used = {"edge_known_share": 0.9, "allowance_share": math.nan, "credit_share": 0.0}
    bench._shares = {"c64": [used], "r50": [used | {"allowance_share": 0.1}]}
    with pytest.raises(NothingFoundError, match="credit_share"):
        bench.in_force()
    bench._shares["paced"] = [used | {"credit_share": 0.2}]
    bench.in_force()
