"""Versions in bounded memory: who makes room for whom, and that nothing moves without need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.versions.plan import Held, Plan, Room, State, Wanted, forgotten, next_plan, settled

QUIET = 30.0
NAMES = ("a@1", "b@1", "c@1", "d@1", "e@1")


@dataclass
class World:
    """A process that carries plans out: unloading takes no time, loading next to none, and every load succeeds."""

    bound: int = 100
    takes: dict[str, int] = field(default_factory=dict)
    """What versions really take."""
    known: dict[str, int] = field(default_factory=dict)
    """What is thought that they take."""
    wanted: list[str] = field(default_factory=list)
    busy: frozenset[str] = frozenset()
    now: float = 0.0
    used: dict[str, float] = field(default_factory=dict)
    books: dict[str, Held] = field(default_factory=dict)
    moves: list[str] = field(default_factory=list)

    def want(self, *names: str, memory: int = 60, thought: int | None = None) -> None:
        for name in names:
            self.wanted.append(name)
            self.takes[name] = memory
            self.known[name] = memory if thought is None else thought
            self.used[name] = self.now

    def ask(self, name: str) -> None:
        self.used[name] = self.now

    @property
    def loaded(self) -> set[str]:
        return {name for name, each in self.books.items() if each.state is State.READY}

    @property
    def memory(self) -> int:
        return sum(self.takes[name] for name in self.loaded)

    def plan(self, leaving: int = 0) -> Plan:
        wanted = [Wanted(name, "d", "x", memory=self.known[name]) for name in self.wanted]
        for name in forgotten(wanted, self.books):
            del self.books[name]
        room = Room(self.bound, QUIET, self.used, leaving)
        return next_plan(wanted, self.books, now=self.now, busy=self.busy, min_residency=QUIET, room=room)

    def rest(self) -> Plan:
        """Carry out plans until there is nothing to do."""
        for _ in range(60):
            plan = self.plan()
            if plan.rests:
                assert plan.wait > 0
                return plan
            self.carry_out(plan)
        raise AssertionError("it does not come to rest")

    def carry_out(self, plan: Plan) -> None:
        before = self.memory
        for name in (*plan.evict, *plan.unload):
            assert name not in self.busy
            del self.books[name]
            self.moves.append(f"-{name}")
        for name in plan.evict:
            if name in self.wanted:
                self.books[name] = Held(name, State.UNLOADED, "d")
        for each in plan.bring:
            assert before + sum(one.memory for one in plan.bring) <= self.bound
            self.known[each.model] = self.takes[each.model]
            self.moves.append(f"+{each.model}")
            self.now += 0.001
            if self.takes[each.model] > self.bound:
                self.books[each.model] = Held(each.model, State.FAILED, "d", "x")
                continue
            self.books[each.model] = Held(
                each.model, State.READY, "d", "x", since=self.now, wanted_until=self.now, memory=self.takes[each.model]
            )
        for each in plan.defer:
            self.books[each.model] = Held(each.model, State.UNLOADED, "d")
        for each in plan.refuse:
            assert self.known[each.model] > self.bound
            self.books[each.model] = Held(each.model, State.FAILED, "d", "x")


def test_what_fits_comes_and_the_rest_is_told_to_have_no_room() -> None:
    world = World()
    world.want("a@1", "b@1")
    world.want("c@1", memory=40)
    world.rest()
    assert world.loaded == {"a@1", "c@1"}
    assert world.books["b@1"].state is State.UNLOADED
    assert settled([Wanted("b@1", "d", "x")], {"b@1": world.books["b@1"]})
    world.now = 1e6
    assert world.rest().wait == math.inf, "something moves though nobody asks for anything"
    assert len(world.moves) == 2


def test_what_is_asked_for_takes_the_place_of_what_nobody_asked_for_lately() -> None:
    world = World()
    world.want("a@1", "b@1")
    world.rest()
    world.now = 10.0
    world.ask("b@1")
    assert world.rest().wait == pytest.approx(QUIET - 10.0, abs=0.1)
    assert world.loaded == {"a@1"}
    world.now = QUIET + 1.0
    world.rest()
    assert world.loaded == {"b@1"}
    assert world.moves == ["+a@1", "-a@1", "+b@1"]
    world.now = 1e6
    assert world.rest().wait == math.inf


def test_what_is_asked_for_stays_however_many_ask_for_something_else() -> None:
    world = World()
    world.want("a@1", "b@1")
    world.rest()
    for second in range(1, 200):
        world.now = float(second)
        world.ask("a@1")
        world.now += 0.5
        world.ask("b@1")
        world.rest()
    assert world.moves == ["+a@1"]


def test_those_asked_for_longest_ago_leave_first_and_no_more_than_need_to() -> None:
    world = World(bound=120)
    world.want("a@1", "b@1", "c@1", memory=40)
    world.rest()
    for name, at in (("c@1", 1.0), ("a@1", 2.0), ("b@1", 3.0)):
        world.now = at
        world.ask(name)
    world.now = 100.0
    world.want("d@1", memory=80)
    world.rest()
    assert world.loaded == {"b@1", "d@1"}


def test_what_nobody_wants_leaves_before_what_is_only_not_asked_for() -> None:
    world = World()
    world.want("a@1", "b@1", memory=50)
    world.rest()
    world.now = 5.0
    world.ask("b@1")
    world.now = 40.0
    world.wanted.remove("b@1")
    world.want("c@1", memory=50)
    assert world.plan().evict == ("b@1",)


def test_what_runs_something_does_not_leave() -> None:
    world = World(busy=frozenset({"a@1"}))
    world.want("a@1", "b@1")
    world.rest()
    world.now = 100.0
    world.ask("b@1")
    assert 0 < world.rest().wait <= 1.0
    assert world.loaded == {"a@1"}
    world.busy = frozenset()
    world.rest()
    assert world.loaded == {"b@1"}


def test_a_version_that_takes_more_than_was_thought_leaves_again_and_is_known_from_then_on() -> None:
    world = World()
    world.want("a@1", "b@1", thought=1)
    world.rest()
    assert len(world.loaded) == 1
    assert len(world.moves) == 3
    world.now = 1e6
    world.rest()
    assert len(world.moves) == 3


def test_room_that_somebody_leaves_is_kept_for_who_it_is_for() -> None:
    world = World(bound=110)
    world.want("a@1", memory=100)
    world.rest()
    world.now = 100.0
    world.want("b@1", memory=105)
    plan = world.plan()
    assert plan.evict == ("a@1",)
    del world.books["a@1"]
    world.want("c@1", memory=10)
    world.now = 101.0
    world.ask("b@1")
    plan = world.plan(leaving=100)
    assert plan.bring == plan.evict == ()
    world.rest()
    assert world.loaded == {"b@1"}


def test_what_takes_more_than_all_may_is_refused_once() -> None:
    world = World()
    world.want("a@1", memory=101)
    world.want("b@1", memory=50)
    world.rest()
    assert world.books["a@1"].state is State.FAILED
    assert world.moves == ["+b@1"]
    assert world.rest().wait == math.inf


STEPS = st.lists(
    st.tuples(
        st.floats(0, 60),
        st.sampled_from(("ask", "want", "unwant", "busy", "idle")),
        st.sampled_from(NAMES),
        st.integers(1, 130),
        st.integers(1, 130),
    ),
    max_size=25,
)


def resident(world: World) -> Mapping[str, float]:
    return {name: max(world.books[name].since, world.used[name]) for name in world.loaded}


def left(moves: Iterable[str]) -> set[str]:
    return {move[1:] for move in moves if move.startswith("-")}


@given(STEPS)
def test_the_bound_holds_nothing_busy_leaves_and_nothing_moves_twice_without_being_asked_for(
    steps: list[tuple[float, str, str, int, int]],
) -> None:
    world = World()
    for seconds, what, name, memory, thought in steps:
        world.now += seconds
        match what:
            case "want" if name not in world.takes:
                world.want(name, memory=memory, thought=min(memory, thought))
            case "ask" if name in world.takes:
                world.ask(name)
            case "unwant" if name in world.wanted:
                world.wanted.remove(name)
            case "busy" if name in world.loaded:
                world.busy |= {name}
            case "idle":
                world.busy -= {name}
        before, lately, moved = world.loaded, resident(world), len(world.moves)
        world.rest()
        moves = world.moves[moved:]
        assert all(moves.count(f"+{each}") <= 1 for each in NAMES), f"something came twice at once: {moves}"
        gone = left(moves) & before & set(world.wanted)
        assert all(lately[each] + QUIET <= world.now for each in gone), "what was asked for lately left"
        if not world.busy:
            assert world.memory <= world.bound
    world.busy = frozenset()
    world.rest()
    assert world.memory <= world.bound
    for _ in range(4):  # what becomes quiet may still make room for what was asked for later; then nothing moves
        world.now += 2 * QUIET
        world.rest()
    moved = len(world.moves)
    world.now += 1e6
    assert world.rest().wait == math.inf
    assert len(world.moves) == moved
    here = [world.used[name] for name in world.loaded]
    for name, each in world.books.items():
        if each.state is State.UNLOADED and world.known[name] <= world.bound:
            newer = [world.takes[other] for other in world.loaded if world.used[other] >= world.used[name]]
            assert sum(newer) + world.known[name] > world.bound or not here, "there was room for it"
