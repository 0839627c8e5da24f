"""The output filter's client against the real filter, over a connection that fails at the worst moments: what leaves is
what an undisturbed filter would have let out, once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.safety.v1 import safety_pb2

from libs.clock import ManualClock, SystemClock
from libs.errors import Reason, WeirError
from libs.safety_filter import Pack, Rule, compile_pack
from services.gateway.clients.safety import SafetyClient
from services.safety.packs import PackKeeper
from services.safety.policy.book import PolicyBook
from services.safety.server import SafetyHandler
from services.safety.turns import Turns

RULES = [
    Rule(id="r", category="test.redact", pattern="a[bc]{2,6}d", action="redact", stage="both", replacement="[gone]"),
    Rule(id="b", category="test.block", pattern="STOP!", action="block", stage="both", replacement=""),
]
PACK: Pack = compile_pack("test", 1, RULES)
PINS = ("test@1",)
GRACE = 3.0


class Session:
    """What a handler keeps per stream."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def on_close(self, callback: Callable[[], None]) -> None: ...


@dataclass
class Call:
    """Written and not answered."""

    item: safety_pb2.SafetyCall
    on_reply: Callable[[Any, WeirError | None], None]


class Link:
    """A multiplexed stream whose fate the test decides; implements what `SafetyClient` uses of `MuxClient`."""

    def __init__(self) -> None:
        self.book = PolicyBook(shipped={}, floor="test@0", most=8)
        self.book.keep(PINS, PACK)
        keeper = PackKeeper(self.book, patience=0)
        self.handler = SafetyHandler(
            keeper=keeper,
            turns=Turns(clock=SystemClock(), max_waiting=1),
            max_filters=100,
            max_context=4096,
            max_input=1,
            max_delta=4096,
        )
        self.client: SafetyClient | None = None
        self.connected = False
        self.generation = 0
        self.session = Session()
        self.calls: list[Call] = []

    def call_nowait(self, item: safety_pb2.SafetyCall, *, on_reply: Any, **options: Any) -> None:
        if not self.connected or options["generation"] != self.generation:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "no such stream")
        copy = safety_pb2.SafetyCall.FromString(item.SerializeToString())
        self.calls.append(Call(copy, on_reply))

    def open(self) -> None:
        self.generation += 1
        self.connected = True
        self.session = Session()
        assert self.client is not None
        self.client.on_stream(self.generation)

    def lose(self) -> None:
        self.connected = False
        lost, self.calls = self.calls, []
        for call in lost:
            call.on_reply(None, WeirError(Reason.DEPENDENCY_UNAVAILABLE, "lost"))

    def answer(self, *, executed: bool = True, told: bool = True) -> None:
        """Answer the oldest call: truly, or with an error although (or because not) it was executed."""
        if not self.calls:
            return
        call = self.calls.pop(0)
        reply, error = None, WeirError(Reason.INTERNAL, "failed")
        if executed:
            try:
                reply = self.handler(call.item, SimpleNamespace(session=self.session))  # type: ignore[arg-type]
            except WeirError as refusal:  # such as a feed behind one that was not executed
                error = refusal
        if told and reply is not None:
            call.on_reply(reply, None)
        else:
            call.on_reply(None, error)

    @property
    def open_filters(self) -> int:
        return len(self.session.state.get("filters", {}))


@dataclass
class Output:
    """A choice: collects what leaves."""

    text: str = ""
    ended: str = ""
    consumed: int = 0
    skipped: bool = False
    lost: bool = False
    ends: list[str] = field(default_factory=list)
    replaced: list[tuple[int, int]] = field(default_factory=list)

    def on_released(
        self, text: str, *, consumed: int, blocked: str, last: bool, replaced: Sequence[tuple[int, int]] = ()
    ) -> None:
        assert not self.ended, "released after the end"
        assert consumed >= self.consumed
        self.text += text
        self.consumed = consumed
        self.replaced += replaced
        self.ended = blocked or ("last" if last else "")

    def on_filter_skipped(self) -> None:
        self.skipped = True

    def on_filter_lost(self) -> None:
        self.lost = True


class Loop:
    """Stands in for the timer of a retry."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> object:
        self.due.append(callback)
        return object()

    def tick(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


class Rig:
    """A client on a link."""

    def __init__(self, *, fail_closed: bool = True) -> None:
        self.clock = ManualClock()
        self.link = Link()
        self.loop = Loop()
        self.found: list[str] = []
        self.client = self.link.client = SafetyClient(
            self.link,  # type: ignore[arg-type]
            clock=self.clock,
            decide_timeout=1.0,
            end_timeout=30.0,
            grace=GRACE,
            chance=lambda: 0.0,
            fail_closed=lambda tenant: fail_closed,
            on_found=lambda tenant, request, stage, found: self.found.append(found.category),
        )

    def open(self, output: Output) -> int:
        return self.client.open(output, tenant="t", policies=PINS, request_id="r")

    def settle(self) -> None:
        """Let everything that was fed get its answer."""
        self.link.book.keep(PINS, PACK)
        if not self.link.connected:
            self.link.open()
        while self.link.calls or self.loop.due:
            self.loop.tick()
            self.link.answer()


@pytest.fixture(autouse=True)
def rigged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers go to the rig that made them."""
    monkeypatch.setattr("services.gateway.clients.safety.asyncio.get_running_loop", lambda: _current.loop)


_current: Any = SimpleNamespace(loop=None)


def rig(*, fail_closed: bool = True) -> Rig:
    made = Rig(fail_closed=fail_closed)
    _current.loop = made.loop
    return made


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
                made.loop.tick()
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
    assert client._filters == client._waiting == {}
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
        made.loop.tick()
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
