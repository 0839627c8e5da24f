"""B4: what a character costs does not depend on which it is, and nobody's long text keeps others waiting."""

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.mux.v1 import mux_pb2
from weir.safety.v1 import safety_pb2

from libs.clock import ManualClock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.mux import CallContext, Session
from libs.safety_filter import (
    Pack,
    PackError,
    PatternError,
    Rule,
    Verdict,
    compile_pack,
    parse_pattern,
    rules_from_json,
)
from libs.safety_filter.stream import TURN
from services.safety.packs import PackKeeper
from services.safety.policy.book import PolicyBook
from services.safety.server import SafetyHandler
from services.safety.turns import SLICE, Steps, Turns

PACKS = Path("services/safety/packs")


@pytest.fixture(scope="module")
def pack() -> Pack:
    return compile_pack("default", 0, rules_from_json((PACKS / "default.json").read_text()))


def transitions(pack: Pack, text: str) -> int:
    """How many steps of the automaton had to be computed rather than looked up."""
    before = pack.output.full.automaton._count
    pack.open_output().feed(text)
    return pack.output.full.automaton._count - before


@pytest.mark.parametrize(("first", "last"), [(0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x80, 0xD7FF)])
def test_b4_many_distinct_characters_compute_no_transitions(pack: Pack, first: int, last: int) -> None:
    rng = random.Random(1)
    # Right behind the beginning of a match, where a run meets them.
    text = "".join(f"4111{chr(rng.randint(first, last))}" for _ in range(5000))
    assert transitions(pack, text) < 300


def test_b4_a_pack_that_names_many_characters_tells_few_apart() -> None:
    pack = compile_pack("han", 1, [Rule("r", "c", r"x[一-龥]{1,20}!", "redact", "both", "*")])
    text = "".join("x" + chr(code) for code in range(0x4E00, 0x9FA5))
    assert transitions(pack, text) < 300
    assert pack.check_output("x一丁龥!").texts == ("*",)


@pytest.mark.parametrize("text", ["wk_." * 500, "1 " * 1000, "\ufdfa" * 2000, "9 9.9-" * 300, "AB12 CD34 " * 200])
def test_b4_a_turn_is_bounded_whatever_the_text(pack: Pack, text: str) -> None:
    stream = pack.open_output()
    turns = 0
    scanning = stream.feed_in_turns(text)
    while True:
        try:
            next(scanning)
        except StopIteration:
            break
        turns += 1
        # A character steps every run there is, at most one for each of the longest pattern's.
        assert stream._work <= TURN + pack.longest * 40
    assert stream._work <= TURN + pack.longest * 40
    assert turns < len(text)


class Ticking(ManualClock):
    """A clock that goes on by a tenth of a slice each time that it is read."""

    def monotonic(self) -> float:
        self.advance(SLICE / 10)
        return super().monotonic()


def steps(log: list[str], name: str, count: int) -> Steps:
    for _ in range(count):
        log.append(name)
        yield
    return Verdict("", (), ())


async def test_b4_long_checks_take_turns_between_tenants_and_with_the_loop() -> None:
    turns = Turns(clock=Ticking(), max_waiting=1000)
    log: list[str] = []
    hogs = [turns.start("hog", steps(log, "hog", 100), 10) for _ in range(5)]
    other = turns.start("other", steps(log, "other", 30), 10)
    assert all(isinstance(one, asyncio.Future) for one in (*hogs, other))

    async def beside() -> None:
        while not other.done():  # type: ignore[union-attr]
            log.append("loop")
            await asyncio.sleep(0)

    await asyncio.gather(beside(), other)  # type: ignore[arg-type]
    assert log.count("hog") < 100, "a tenant with five checks gets no more turns than one with one"
    busy = "".join("." if name == "loop" else "x" for name in log)
    assert max(map(len, busy.split("."))) <= 25, "the loop goes on after each turn"
    await asyncio.gather(*hogs)  # type: ignore[arg-type]
    assert log.count("hog") == 500


async def test_b4_short_checks_are_answered_at_once_until_the_ticks_share_is_used_up() -> None:
    turns = Turns(clock=Ticking(), max_waiting=1000)
    log: list[str] = []
    answers = [turns.start(f"t{number}", steps(log, "x", 3), 10) for number in range(4)]
    assert isinstance(answers[0], Verdict)
    assert isinstance(answers[-1], asyncio.Future)
    await answers[-1]


async def test_b4_what_waits_of_one_tenant_is_bounded_and_a_cancelled_check_is_dropped() -> None:
    turns = Turns(clock=Ticking(), max_waiting=100)
    log: list[str] = []
    first = turns.start("hog", steps(log, "first", 1000), 80)
    with pytest.raises(WeirError) as refused:
        turns.start("hog", steps(log, "second", 1000), 30)
    assert (refused.value.reason, refused.value.limit) == (Reason.REJECTED_OVERLOAD, "max_waiting_chars")
    assert isinstance(first, asyncio.Future)
    first.cancel()
    third = turns.start("other", steps(log, "third", 50), 80)
    assert isinstance(third, asyncio.Future)
    await third
    assert log.count("first") < 100


@settings(max_examples=400, deadline=500)
@given(st.text(r"ab(|)?:[]{},-\dwsi0123456789#luhn^$*+é字.=<!", max_size=60))
def test_b4_no_pattern_hangs_or_breaks_the_parser(pattern: str) -> None:
    try:
        parsed = parse_pattern(pattern)
    except PatternError:
        return
    assert parsed.longest <= 256


@pytest.mark.parametrize("pattern", ["(?:(?:(?:|){200}){200}){200}a", "(?:" + "|" * 1500 + "){200}a", "a(?:\\b{1})"])
def test_b4_patterns_that_expand_to_nothing_are_counted(pattern: str) -> None:
    with pytest.raises(PatternError):
        parse_pattern(pattern)


@settings(max_examples=200, deadline=500)
@given(st.one_of(st.text(max_size=50), st.sampled_from(["[" * 100_000, '{"a":' * 50_000])))
def test_b4_no_pack_file_breaks_its_reader(text: str) -> None:
    with pytest.raises(PackError):
        rules_from_json(text)


async def test_b4_length_is_checked_before_anything_is_looked_at(pack: Pack) -> None:
    class Unused:
        def start(self, *_: object) -> None:
            raise AssertionError("it was looked at")

    handler = SafetyHandler(
        keeper=PackKeeper(PolicyBook(shipped={"none@0": pack}, floor="none@0", most=1), patience=0),
        turns=Unused(),  # type: ignore[arg-type]
        max_filters=1,
        max_context=1,
        max_input=100,
        max_delta=10,
    )
    for call, limit in (
        (safety_pb2.SafetyCall(check_input=safety_pb2.CheckInput(texts=["x" * 60, "y" * 60])), "max_input_chars"),
        (
            safety_pb2.SafetyCall(filter_output=safety_pb2.FilterOutput(filters=[1], deltas=["x" * 11])),
            "max_delta_chars",
        ),
    ):
        with pytest.raises(WeirError) as refused:
            handler(call, CallContext(1, Deadline(0), "", Session("gateway", mux_pb2.Hello())))
        assert (refused.value.reason, refused.value.limit) == (Reason.PAYLOAD_TOO_LARGE, limit)
