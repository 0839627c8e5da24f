"""Spans follow an explicit context; an unsampled request pays nothing and loses nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from libs.errors import Reason, WeirError
from libs.telemetry import tracing
from libs.telemetry.tracing import CLIENT, SERVER, is_sampled, linked, root, span, traceparent_or_empty

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = SAMPLED[:-2] + "00"


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing.configure_tracing(service="router", instance="router-0", zone="zone-a", exporter=exporter)
    yield exporter
    tracing.shutdown_tracing()


def test_a_sampled_parent_gets_a_child(exported: InMemorySpanExporter) -> None:
    with span("route", SAMPLED, kind=SERVER, attributes={"weir.tenant": "acme"}) as server:
        server.set("weir.zone", "zone-a")
        with span("reserve", server.traceparent, kind=CLIENT) as client:
            assert client.traceparent[3:35] == SAMPLED[3:35]
    inner, outer = exported.get_finished_spans()
    assert (outer.name, outer.kind, inner.name, inner.kind) == ("route", SpanKind.SERVER, "reserve", SpanKind.CLIENT)
    assert outer.parent is not None
    assert inner.parent is not None
    assert f"{outer.context.trace_id:032x}" == SAMPLED[3:35]
    assert f"{outer.parent.span_id:016x}" == SAMPLED[36:52]
    assert outer.parent.is_remote
    assert inner.parent.span_id == outer.context.span_id
    assert server.traceparent == f"00-{SAMPLED[3:35]}-{outer.context.span_id:016x}-01"
    assert dict(outer.attributes or {}) == {"weir.tenant": "acme", "weir.zone": "zone-a"}
    assert outer.resource.attributes["service.name"] == "router"
    assert outer.resource.attributes["weir.zone"] == "zone-a"


def test_a_linked_trace_is_one_of_its_own(exported: InMemorySpanExporter) -> None:
    with span("route", SAMPLED), linked("copy", SAMPLED) as copy, span("run", copy.traceparent):
        pass
    run, made, _ = exported.get_finished_spans()
    assert made.parent is None
    assert f"{made.context.trace_id:032x}" != SAMPLED[3:35]
    (link,) = made.links
    assert f"{link.context.trace_id:032x}-{link.context.span_id:016x}" == SAMPLED[3:52]
    assert run.parent is not None
    assert run.parent.span_id == made.context.span_id


@pytest.mark.parametrize("origin", [UNSAMPLED, "", "nonsense"])
def test_nothing_is_linked_to_what_is_not_recorded(exported: InMemorySpanExporter, origin: str) -> None:
    with linked("copy", origin) as made:
        assert not is_sampled(made.traceparent)
    assert not exported.get_finished_spans()


@pytest.mark.parametrize("parent", [UNSAMPLED, ""])
def test_an_unsampled_parent_is_handed_on(exported: InMemorySpanExporter, parent: str) -> None:
    with span("route", parent) as made:
        made.set("k", 1)
        assert made.traceparent == parent
    made.end("INTERNAL")
    assert not exported.get_finished_spans()


def test_without_a_destination_nothing_is_traced() -> None:
    with span("route", SAMPLED) as made:
        assert made.traceparent == SAMPLED


def test_without_a_destination_opentelemetry_is_not_even_imported() -> None:
    code = (
        "import sys\n"
        "from libs.telemetry.tracing import configure_tracing, shutdown_tracing, span\n"
        "configure_tracing(service='s', instance='i', zone='z')\n"
        f"with span('x', {SAMPLED!r}): pass\n"
        "shutdown_tracing()\n"
        "print(any(name.startswith('opentelemetry') for name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_a_failure_marks_the_span(exported: InMemorySpanExporter) -> None:
    with pytest.raises(WeirError), span("route", SAMPLED):
        raise WeirError(Reason.QUOTA_TOKENS, "the message may quote a user")
    with pytest.raises(ZeroDivisionError), span("route", SAMPLED):
        raise ZeroDivisionError("text")
    ours, foreign = exported.get_finished_spans()
    assert (ours.status.status_code, ours.status.description) == (StatusCode.ERROR, "QUOTA_TOKENS")
    assert (ours.attributes or {})["error.type"] == "QUOTA_TOKENS"
    assert (foreign.attributes or {})["error.type"] == "ZeroDivisionError"
    assert not ours.events  # an exception event would carry the message


def test_a_span_has_so_many_links_and_none_to_what_is_no_span(exported: InMemorySpanExporter) -> None:
    others = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 2 * tracing.MOST_LINKS)]
    span("step", SAMPLED, links=["", "00-1-2-01", *others]).end()
    [told] = exported.get_finished_spans()
    assert [link.context.trace_id for link in told.links] == list(range(1, tracing.MOST_LINKS + 1))


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_a_clock_that_is_set_changes_no_duration(
    exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    made = span("work", SAMPLED)
    set_to = time.time_ns() + jump * 10**9
    monkeypatch.setattr("opentelemetry.sdk.trace.time_ns", lambda: set_to)
    made.end()
    [told] = exported.get_finished_spans()
    assert 0 <= told.end_time - told.start_time < 3000 * 10**9


def test_ending_twice_changes_nothing(exported: InMemorySpanExporter) -> None:
    made = span("route", SAMPLED)
    made.end()
    made.end("INTERNAL")
    (only,) = exported.get_finished_spans()
    assert only.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    "parent",
    [
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c8031zz-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
        "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\u0661",
        SAMPLED + "-extra",
        SAMPLED + "\n",
        "nonsense",
    ],
)
def test_a_malformed_parent_is_no_parent(exported: InMemorySpanExporter, parent: str) -> None:
    assert traceparent_or_empty(parent) == ""
    with span("route", parent):
        pass  # and starting a span under it does not fail
    for made in exported.get_finished_spans():
        assert made.parent is None or made.parent.is_valid


@given(st.text(max_size=60) | st.text("0123456789abcdef-", min_size=55, max_size=55))
def test_no_header_breaks_a_span(header: str) -> None:
    tracing.configure_tracing(service="s", instance="i", zone="z", exporter=InMemorySpanExporter())
    try:
        with span("route", header):
            pass
        assert traceparent_or_empty(header) in ("", header)
    finally:
        tracing.shutdown_tracing()


def test_a_well_formed_parent_is_kept() -> None:
    assert traceparent_or_empty(SAMPLED) == SAMPLED
    assert traceparent_or_empty(UNSAMPLED) == UNSAMPLED


def test_a_root_decides_by_its_ratio() -> None:
    rng = random.Random(7)
    made = [root(0.25, rng) for _ in range(2000)]
    assert all(traceparent_or_empty(parent) == parent for parent in made)
    assert 400 < sum(map(is_sampled, made)) < 600
    assert len({parent[3:35] for parent in made}) == 2000
    assert not any(is_sampled(root(0.0, rng)) for _ in range(100))
    assert all(is_sampled(root(1.0, rng)) for _ in range(100))


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("03", True), ("ff", True)])
def test_the_sampled_flag_is_the_lowest_bit(flags: str, sampled: bool) -> None:
    assert is_sampled(SAMPLED[:-2] + flags) is sampled
