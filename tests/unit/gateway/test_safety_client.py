"""The output filter's client against the real filter, over a connection that fails at the worst moments: what leaves is
what an undisturbed filter would have let out, once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from weir.safety.v1 import safety_pb2

from libs.telemetry.tracing import configure_tracing, shutdown_tracing
from services.gateway import metrics
from tests.support.filter_link import GRACE, PACK, PINS, Output, rig


def undisturbed(text: str) -> tuple[str, bool, list[tuple[int, int]]]:
    """What the filter lets out of the whole text, whether it blocks, and what it replaces."""
    stream = PACK.open_output()
    out = stream.feed(text) + stream.finish()
    return out, stream.blocked, stream.replaced


pieces = st.lists(
    st.sampled_from(["a", "b", "c", "d", "abc", "bd", "STO", "P!", "x", "y", " ", "é😀", "abbd", "S", "T"]), max_size=12
)
FATES = ("answer", "answer", "answer", "lose", "open", "refuse", "forget", "retry", "flush", "evict", "compile")


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, min_size=1, max_size=3), st.integers(0, 2**32))
def test_what_leaves_is_what_an_undisturbed_filter_lets_out(texts: list[list[str]], seed: int) -> None:
    rng = random.Random(seed)
    made = rig()
    link, client = made.link, made.client
    outputs = [Output() for _ in texts]
    numbers = [made.open(output) for output in outputs]
    left = [[*parts, None] for parts in texts]
    while any(left):
        for number, parts in zip(numbers, left, strict=True):
            for _ in range(rng.randrange(3)):  # several feeds may share a frame, the end among them
                if parts:
                    part = parts.pop(0)
                    client.feed(number, part or "", last=part is None)
        client.flush()
        for _ in range(rng.randrange(4)):
            fate = rng.choice(FATES)
            if fate == "answer":
                link.answer()
            elif fate == "refuse":
                link.answer(executed=False)
            elif fate == "forget":
                link.answer(told=False)
            elif fate == "lose" and link.connected:
                link.lose()
            elif fate == "open" and not link.connected:
                link.open()
            elif fate == "retry":
                made.client.sweep()
            elif fate == "flush":
                client.flush()
            elif fate == "evict":
                link.book._packs.clear()
            elif fate == "compile":
                link.book.keep(PINS, PACK)
    made.settle()
    for output, parts in zip(outputs, texts, strict=True):
        text = "".join(parts)
        expected, blocks, replaced = undisturbed(text)
        assert output.text == expected
        assert output.replaced == replaced
        assert output.ended == ("test.block" if blocks else "last")
        assert not output.lost
        assert not output.skipped
    client.flush()
    link.answer()
    assert client._texts == client._waiting == {}
    assert link.open_filters == 0


def test_text_and_end_of_one_frame_are_one_feed() -> None:
    made = rig()
    made.link.open()
    output = Output()
    number = made.open(output)
    made.client.feed(number, "ab", last=False)
    made.client.feed(number, "c", last=True)
    made.client.flush()
    (call,) = made.link.calls
    assert (list(call.item.filter_output.deltas), list(call.item.filter_output.last)) == (["abc"], [True])
    made.settle()
    assert (output.text, output.ended) == ("abc", "last")


def test_text_that_comes_while_a_question_is_under_way_goes_with_the_next() -> None:
    made = rig()
    made.link.open()
    output = Output()
    number = made.open(output)
    for piece in ("a ", "b ", "c "):
        made.client.feed(number, piece, last=False)
        made.client.flush()
    assert [list(call.item.filter_output.deltas) for call in made.link.calls] == [["a "]]
    made.client.feed(number, "d", last=True)
    made.link.answer()  # and nobody flushes
    (call,) = made.link.calls
    assert (list(call.item.filter_output.deltas), list(call.item.filter_output.last)) == (["b c d"], [True])
    made.link.answer()
    assert (output.text, output.ended) == ("a b c d", "last")


@pytest.fixture
def recorded() -> Iterator[Callable[[], Sequence[ReadableSpan]]]:
    """The spans that have ended."""
    exporter = InMemorySpanExporter()
    configure_tracing(service="gateway", instance="gateway", zone="zone-a", exporter=exporter)
    yield exporter.get_finished_spans
    shutdown_tracing()


def traced(request: int, *, sampled: bool = True) -> str:
    return f"00-{request:032x}-{request:016x}-{int(sampled):02d}"


def test_a_question_has_a_span_in_the_tree_of_each_traced_request_and_each_is_linked(
    recorded: Callable[[], Sequence[ReadableSpan]],
) -> None:
    made = rig()
    made.link.open()
    requests = [traced(1), traced(2, sampled=False), "", traced(3), traced(3), traced(4)]
    for number in [made.open(Output(), each) for each in requests]:
        made.client.feed(number, "a", last=False)
    made.client.flush()
    [call] = made.link.calls
    assert recorded() == ()
    made.link.answer()
    own, *others = recorded()
    assert call.traceparent == f"00-{1:032x}-{own.context.span_id:016x}-01"
    assert [each.context.trace_id for each in (own, *others)] == [1, 3, 4]
    assert [each.parent.span_id for each in (own, *others)] == [1, 3, 4]
    assert [(each.context.trace_id, each.context.span_id) for each in own.links] == [(3, 3), (4, 4)]
    for each in others:
        assert [link.context.span_id for link in each.links] == [own.context.span_id]
    assert {dict(each.attributes)["weir.filter.texts"] for each in (own, *others)} == {6}


def test_only_the_first_questions_of_a_traced_text_have_a_span(recorded: Callable[[], Sequence[ReadableSpan]]) -> None:
    made = rig()
    made.link.open()
    number, ended = made.open(Output(), traced(1)), made.open(Output(), traced(2))
    made.client.close(ended)
    told = []
    for _ in range(10):
        made.client.feed(number, "a", last=False)
        made.client.flush()
        told += [bool(call.traceparent) for call in made.link.calls]
        made.link.answer()
    assert told == [True] * 4 + [False] * 6
    assert len(recorded()) == 4
    assert made.client._traced == set()


def test_the_span_of_a_question_that_failed_says_why(recorded: Callable[[], Sequence[ReadableSpan]]) -> None:
    made = rig()
    made.link.open()
    made.client.feed(made.open(Output(), traced(1)), "a", last=False)
    made.client.flush()
    made.link.lose()
    assert [dict(each.attributes)["error.type"] for each in recorded()] == ["DEPENDENCY_UNAVAILABLE"]


def test_fail_closed_gives_up_after_the_grace_and_not_before() -> None:
    made = rig()
    output = Output()
    made.client.feed(made.open(output), "text", last=False)
    made.client.flush()
    made.clock.advance(GRACE - 0.1)
    made.client.sweep()
    assert not output.lost
    made.clock.advance(0.2)
    made.client.sweep()
    assert output.lost
    assert output.text == ""


@pytest.mark.parametrize("fail_closed", [True, False])
def test_policies_that_have_not_arrived_are_waited_for_and_then_the_tenants_mode_decides(fail_closed: bool) -> None:
    made = rig(fail_closed=fail_closed)
    made.link.open()
    made.link.book._packs.clear()
    output = Output()
    made.client.feed(made.open(output), "text", last=True)
    made.client.flush()
    for _ in range(5):
        made.link.answer()
        made.client.sweep()
    assert (output.text, output.lost, output.skipped) == ("", False, False)
    made.clock.advance(GRACE + 0.1)
    made.link.answer()
    assert (output.text, output.lost, output.skipped) == (("", True, False) if fail_closed else ("text", False, True))


def test_the_grace_starts_again_after_an_answer() -> None:
    made = rig()
    output = Output()
    number = made.open(output)
    made.client.feed(number, "a ", last=False)
    made.client.flush()
    made.clock.advance(GRACE - 0.1)
    made.link.open()
    made.link.answer()
    made.link.lose()
    made.client.feed(number, "b ", last=False)
    made.client.flush()
    made.clock.advance(GRACE - 0.1)
    made.client.sweep()
    assert not output.lost
    made.settle()
    assert output.text == "a b "


def test_serve_and_flag_lets_held_text_go_too() -> None:
    made = rig(fail_closed=False)
    made.link.open()
    output = Output()
    number = made.open(output)
    made.client.feed(number, "see abc", last=False)
    made.client.flush()
    made.link.answer()
    assert output.text == "see "
    made.link.lose()
    made.client.feed(number, "c more", last=True)
    made.client.flush()
    assert output.skipped
    assert (output.text, output.ended) == ("see abcc more", "last")


def test_a_closed_filter_is_closed_there_too() -> None:
    made = rig()
    made.link.open()
    output = Output()
    number = made.open(output)
    made.client.feed(number, "text", last=False)
    made.client.flush()
    made.link.answer()
    made.client.close(number)
    made.client.feed(number, "late", last=True)
    made.client.flush()
    made.link.answer()
    assert output.text == "text"
    assert made.link.open_filters == 0


def test_an_answer_about_other_filters_counts_as_none() -> None:
    made = rig()
    made.link.open()
    output = Output()
    made.client.feed(made.open(output), "text", last=True)
    made.client.flush()
    call = made.link.calls.pop()
    call.on_reply(safety_pb2.SafetyReply(output=safety_pb2.OutputReleased(released=["x", "y"], held=[0, 0])), None)
    assert output.text == ""
    made.settle()
    assert (output.text, output.ended) == ("text", "last")


def test_findings_are_told_once() -> None:
    made = rig()
    made.link.open()
    output = Output()
    made.client.feed(made.open(output), "abbd", last=True)
    made.client.flush()
    made.link.answer(told=False)
    made.settle()
    assert output.text == "[gone]"
    assert made.found == ["test.redact"]


def test_each_question_is_timed_until_its_answer() -> None:
    made, before = rig(), (sum(metrics.FILTER.counts), metrics.FILTER.total)
    made.link.open()
    for number in (made.open(Output()), made.open(Output())):
        made.client.feed(number, "abc", last=True)
    made.client.flush()
    made.clock.advance(0.25)
    made.link.answer()
    assert (sum(metrics.FILTER.counts), metrics.FILTER.total) == (before[0] + 1, before[1] + 0.25)
