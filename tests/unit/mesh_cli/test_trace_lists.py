"""`weir trace` finds a trace by its id, by its request's, by whose it is, how it ended and how long it took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.trace.v1 import trace_pb2

from libs.traces import Span
from services.cli.mesh import traces
from services.cli.mesh.traces import Wanted
from services.collector.convert import spans

REQUEST = "0e2b2fd3-5d4c-4d8e-9b6e-3a4c0f9f8a11"
KEPT = (  # trace, tenant, seconds, error, request
    (1, "acme", 0.5, "", REQUEST),
    (2, "globex", 9.0, "", "r2"),
    (3, "acme", 2.0, "QUOTA_TOKENS", "r3"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for trace, tenant, seconds, error, request in KEPT:
        span = Span(
            trace_id=f"{trace:032x}",
            span_id="a",
            name="chat",
            start_ns=0,
            end_ns=int(seconds * 1e9),
            error=error,
            attributes={"weir.tenant": tenant, "weir.request_id": request},
        )
        (tmp_path / f"{trace:032x}.jsonl").write_bytes(msgspec.json.encode(span) + b"\n")
    return tmp_path


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(), {1, 2, 3}),
        (Wanted(tenant="acme"), {1, 3}),
        (Wanted(failed=True), {3}),
        (Wanted(tenant="globex", failed=True), set()),
        (Wanted(slowest=True, count=1), {2}),
        (Wanted(slowest=True, tenant="acme", count=1), {3}),
    ],
)
def test_lists_are_of_a_tenant_of_the_failed_and_by_how_long_they_took(
    folder: Path, capsys: pytest.CaptureFixture[str], wanted: Wanted, found: set[int]
) -> None:
    traces.listed(folder, wanted, output="json")
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert {int(row["trace_id"], 16) for row in rows} == found


def test_the_slowest_come_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces.listed(folder, Wanted(slowest=True), output="json")
    assert [int(row["trace_id"], 16) for row in json.loads(capsys.readouterr().out)] == [2, 3, 1]


@pytest.mark.parametrize("asked", [f"{1:032x}", REQUEST])
def test_an_id_is_a_traces_or_a_requests(folder: Path, capsys: pytest.CaptureFixture[str], asked: str) -> None:
    traces.show(folder, asked, output="json")
    assert json.loads(capsys.readouterr().out)["trace_id"] == f"{1:032x}"


@pytest.mark.parametrize("asked", ["acme", REQUEST[:8], "../secrets", f"{9:032x}"])
def test_what_is_no_id_finds_nothing(folder: Path, asked: str) -> None:
    """A tenant's name is in the files, too, and a part of an id."""
    with pytest.raises(SystemExit):
        traces.show(folder, asked, output="table")


def test_a_requests_id_comes_through_the_collector_as_it_is() -> None:
    """What looks like a secret or a card is taken out of attributes there; ids must not look so."""
    span = trace_pb2.Span(trace_id=bytes([1] * 16), span_id=bytes([1] * 8), name="chat")
    for name in ("weir.request_id", "guid:x-request-id"):
        span.attributes.add(key=name).value.string_value = REQUEST
    exported = trace_pb2.ResourceSpans(scope_spans=[trace_pb2.ScopeSpans(spans=[span])])
    [kept] = spans([exported], max_value_chars=100)
    assert kept is not None
    assert set(kept.attributes.values()) == {REQUEST}
