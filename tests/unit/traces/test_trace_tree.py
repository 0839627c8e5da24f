"""Spans to a tree."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.traces import Span, assemble, read_trace, recent_traces, render, summary, trace_path

TRACE = "0af7651916cd43dd8448eb211c80319c"


def span(span_id: str, parent: str = "", start: int = 0, service: str = "", error: str = "", **about: str) -> Span:
    return Span(
        trace_id=TRACE,
        span_id=span_id,
        parent_id=parent,
        name=f"do {span_id}",
        service=service or span_id,
        start_ns=start,
        end_ns=start + 5_000_000,
        error=error,
        attributes=dict(about),
    )


REQUEST = [
    span("quota", "gateway", 30),
    span("envoy", "", 0),
    span("gateway", "envoy", 20),
    span("auth", "envoy", 10),
    span("route", "gateway", 25, error="MODEL_NOT_FOUND"),
]


def test_children_hang_below_their_parents_by_start_time() -> None:
    tree = assemble(REQUEST)
    assert [(depth, s.span_id) for depth, s in tree.spans()] == [
        (0, "envoy"),
        (1, "auth"),
        (1, "gateway"),
        (2, "route"),
        (2, "quota"),
    ]
    assert tree.is_one_tree
    assert tree.edges() == {("envoy", "auth"), ("envoy", "gateway"), ("gateway", "route"), ("gateway", "quota")}
    assert tree.services() == {"envoy", "auth", "gateway", "route", "quota"}


def test_a_callers_unrecorded_span_still_makes_one_tree() -> None:
    assert assemble([span("a", "caller"), span("b", "caller"), span("c", "a")]).is_one_tree
    assert not assemble([span("a", "caller"), span("b", "stranger")]).is_one_tree
    assert not assemble([span("a"), span("b")]).is_one_tree
    assert not assemble([]).is_one_tree


def test_a_span_exported_twice_counts_once() -> None:
    assert len(list(assemble([*REQUEST, *REQUEST]).spans())) == len(REQUEST)


IDS = st.integers(0, 7).map(lambda n: f"s{n}")


@given(st.lists(st.tuples(IDS, st.one_of(IDS, st.sampled_from(["", "outside"])), st.integers(0, 9)), max_size=12))
def test_every_span_is_in_the_tree_exactly_once_whatever_the_parents(rows: list[tuple[str, str, int]]) -> None:
    spans = [span(span_id, parent, start) for span_id, parent, start in rows]
    seen = [each.span_id for _, each in assemble(spans).spans()]
    assert sorted(seen) == sorted({each.span_id for each in spans})


def test_text_shows_order_depth_and_errors() -> None:
    lines = render(assemble(REQUEST)).splitlines()
    assert lines[1].endswith("envoy: do envoy")
    assert lines[4].endswith("    route: do route  ERROR MODEL_NOT_FOUND")
    assert render(assemble([])) == "(no spans)"


def test_text_names_the_trace_that_a_span_is_linked_to_and_counts_the_others() -> None:
    others = [f"{number:032x}-{number:016x}" for number in (7, 8, 7, 9)]
    one, several = (msgspec.structs.replace(span("filter"), links=links) for links in (others[:1], others))
    assert render(assemble([one])).endswith(f"filter: do filter  with {7:032x}")
    assert render(assemble([several])).endswith(f"filter: do filter  with {7:032x} and 2 more")


def test_a_summary_says_who_asked_for_what_and_how_it_ended() -> None:
    limiter = span("limiter", "envoy", 15, error="QUOTA_TOKENS", **{"weir.tenant": "acme"})
    answered = span("gateway", "envoy", 20, **{"gen_ai.request.model": "fast", "gen_ai.response.model": "fast@1"})
    said = summary(assemble([*REQUEST[1:2], limiter, answered, span("route", "gateway", 25, error="MODEL_NOT_FOUND")]))
    assert (said.tenant, said.model, said.error, said.name) == ("acme", "fast@1", "QUOTA_TOKENS", "do envoy")
    assert (said.start_ns, said.spans, said.seconds) == (0, 4, pytest.approx(0.005, abs=1e-6))
    unknown = summary(assemble([span("gateway", **{"gen_ai.request.model": "fast"})]))
    assert (unknown.tenant, unknown.model, unknown.error) == ("", "fast", "")
    with pytest.raises(ValueError, match="no spans"):
        summary(assemble([]))


def test_files_are_read_without_a_line_that_is_still_being_written(tmp_path: Path) -> None:
    path = trace_path(tmp_path, TRACE)
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in REQUEST) + b'{"trace_id": "0af')
    assert read_trace(tmp_path, TRACE) == REQUEST
    assert read_trace(tmp_path, "f" * 32) == []
    assert recent_traces(tmp_path, 5) == [TRACE]
    for bad in ("../../etc/passwd", "", "F" * 32):
        with pytest.raises(ValueError, match="not a trace id"):
            read_trace(tmp_path, bad)
