"""B5: nothing that a caller writes is found afterwards in anything that a mesh keeps or shows.

A whole mesh, as a newcomer starts it. Strings with a mark go through every field of every API, good requests and bad
ones, all of them traced; then every file of the state directory and every page of metrics is searched for the mark.
What operators write into the registry is stored by design and not sent here: their calls are refused or dry runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.canaries import Canaries, Sender, leaks_in
from tests.support.mesh import Mesh, eventually

ALLOWED: dict[str, str] = {}
"""Files that must hold what callers write, and why. There are none: prompts live in memory only."""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with Mesh(tmp_path_factory.mktemp("canaries")) as running:
        yield running


def pages(mesh: Mesh) -> Iterator[tuple[str, bytes]]:
    """Every process's metrics."""
    for name, process in mesh.file()["services"].items():
        where = process.get("metrics", "")
        if not where:
            continue
        if where.startswith("unix:"):  # Envoy's admin, behind a socket of its own
            socket, _, path = where.removeprefix("unix:").partition("#")
            with httpx2.Client(transport=httpx2.HTTPTransport(uds=socket)) as client:
                yield name, client.get(f"http://envoy/{path or 'stats/prometheus'}").content
            continue
        yield name, httpx2.get(f"http://{where}" if "/" in where else f"http://{where}/metrics", timeout=30).content


@pytest.mark.timeout(600)
def test_b5_nothing_that_a_caller_writes_is_kept_or_shown(mesh: Mesh) -> None:
    canaries = Canaries()
    sender = Sender(mesh.env, canaries, gateway=mesh.file()["services"]["gateway"]["address"])
    sender.everything()
    sender.close()
    # Enough of them were served for the search to mean something, and they are in the log.
    assert sender.sent > 250
    assert sender.served > 60
    last = eventually(lambda: mesh.weir_json("audit", "tail", "-n", "1000")["records"], what="records")
    seen = json.dumps(last)
    assert "<unknown>" in seen
    assert "security" in seen or sender.sent
    shown = {name: fields for name, page in pages(mesh) if (fields := canaries.named(page))}
    assert shown == {}
    mesh.weir("down", seconds=120)  # what is buffered is written now
    traces = list((mesh.state / "traces").glob("*.jsonl"))
    assert len(traces) > 100
    kept = {path: fields for path, fields in leaks_in(mesh.state, canaries).items() if path not in ALLOWED}
    assert kept == {}


def test_b5_the_search_finds_what_is_there(tmp_path: Path) -> None:
    canaries = Canaries()
    (tmp_path / "a").write_bytes(b"\x00\xff" + canaries.mark("some field").upper().encode() + b"\x00")
    assert leaks_in(tmp_path, canaries) == {"a": ["some field"]}
