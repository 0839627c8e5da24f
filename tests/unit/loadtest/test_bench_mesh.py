"""What the mesh's bench asks for, and what it says when nothing of it was served."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest import grpc_call, mesh, mesh_options, stream_search
from loadtest.overload import output
from loadtest.scenarios import Edge, LoadError
from tests.support.mesh import ROOT

ASKED = ("flat_tokens", "paced_tokens", "probe_tokens")
PROMPT = 100
"""Tokens of the question at most."""


def options(monkeypatch: pytest.MonkeyPatch, *words: str) -> Namespace:
    """Of the command with these words."""
    monkeypatch.setattr("sys.argv", ["mesh", *words])
    return mesh_options.arguments()


def test_a_smoke_run_asks_for_what_the_whole_one_asks_for_and_the_context_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, smoke = (vars(options(monkeypatch, *words)) for words in ((), ("--smoke",)))
    assert smoke["seconds"] < whole["seconds"]
    assert [smoke[name] for name in ASKED] == [whole[name] for name in ASKED]
    context = json.loads((ROOT / "models/demo/fast/manifest.json").read_text())["context_length"]
    assert max(whole[name] for name in ASKED) + PROMPT <= context


class Folder:
    """A mesh as far as a bench looks at it."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def file(self) -> dict[str, Any]:
        """mesh.json."""
        return {"services": {}}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., mesh.Bench]:
    """Of a mesh that is not there."""

    def make(*words: str) -> mesh.Bench:
        made = mesh.Bench(Folder(tmp_path), (), options(monkeypatch, *words))  # type: ignore[arg-type]
        monkeypatch.setattr(made, "edge", lambda: None)
        return made

    return make


@pytest.mark.parametrize(
    ("words", "found", "red"),
    [
        ((), stream_search.Probe(100, fault="100 were refused or ended, one with 429"), True),
        ((), stream_search.Probe(100, itl_p99=0.5, pace=1.0), True),
        (("--smoke",), stream_search.Probe(8, fault="8 were refused or ended, one with 429"), True),
        (("--smoke",), stream_search.Probe(8, itl_p99=0.5, pace=1.0), False),
    ],
    ids=["refused", "late", "smoke, refused", "smoke, late"],
)
async def test_a_search_in_which_no_stream_held_is_red(
    bench: Callable[..., mesh.Bench],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    found: stream_search.Probe,
    red: bool,
) -> None:
    async def probe(*_: Any, **__: Any) -> stream_search.Probe:
        return found

    monkeypatch.setattr(stream_search, "probe", probe)
    one, parts = bench(*words, "--search-seconds", "0.001"), output.Parts()
    with parts.part("streams"):
        await one.streams()
    assert bool(parts.failed) is red
    if red:
        assert str(found) in parts.failed["streams"]


async def test_streams_that_ask_for_more_than_the_context_has_are_an_error_and_no_number() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        edge = Edge("127.0.0.1", server.sockets[0].getsockname()[1], ("key",), {}, ())
        with pytest.raises(LoadError, match="2 were refused or ended, one with 400"):
            await stream_search.probe(edge, 2, interval=0.02, seconds=0.01, max_tokens=9999)


async def test_times_in_calls_are_those_of_their_own_windows(
    bench: Callable[..., mesh.Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half as fast in the second minute: the ratio stays, which that of the medians would not."""
    marks = iter([0.0005, 0.0005, 0.0015, 0.0005])

    async def cpu_seconds(*_: Any, **__: Any) -> float:
        return next(marks)

    monkeypatch.setattr(grpc_call, "cpu_seconds", cpu_seconds)
    one = bench("--repeats", "3")

    async def window(number: int) -> float:
        return (4.0, 8.0, 8.0)[number]

    values, calls = await one._windows(window)
    assert calls == pytest.approx([500.0, 1000.0, 1000.0])
    assert one._time("cpu_ms_per_request_c64", values, calls, us=1e3) == pytest.approx([8.0, 8.0, 8.0])
    assert one.per_call == pytest.approx({"cpu_ms_per_request_c64": 8.0})
