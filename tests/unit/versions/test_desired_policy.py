"""What a worker does next to have ready what the registry wants."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.versions.plan import (
    MOST_UNDER_WAY,
    UNDER_WAY,
    Fault,
    Held,
    State,
    Wanted,
    forgotten,
    next_plan,
    settled,
)

NAMES = ("a@1", "a@2", "b@1", "c@1")


def want(model: str, *, digest: str = "d", basis: str = "x", first: bool = False) -> Wanted:
    return Wanted(model, digest, basis, first)


def have(model: str, state: State = State.READY, **fields: object) -> Held:
    return Held(model, state, **({"digest": "d", "basis": "x"} | fields))  # type: ignore[arg-type]


def ask(wanted, held=(), *, now: float = 100.0, busy=frozenset(), min_residency: float = 10.0):
    return next_plan(wanted, {each.model: each for each in held}, now=now, busy=busy, min_residency=min_residency)


def test_the_states_are_the_registrys():
    assert {state.name: int(state) for state in State} == {
        name.removeprefix("LOAD_STATE_"): number for name, number in pb.LoadState.items() if number
    }


def test_what_an_alias_gives_comes_before_candidates():
    plan = ask([want("a@2"), want("b@1", first=True), want("a@1", first=True)])
    assert [each.model for each in plan.bring] == ["a@1", "b@1"]


def test_e5_candidates_leave_places_for_what_aliases_give_and_these_for_a_rollback():
    many = [want(f"x@{number}") for number in range(9)]
    promoted = [want(f"a@{number}", first=True) for number in range(9)]
    back = replace(want("z@1", first=True), served=True)
    assert len(ask(many).bring) == MOST_UNDER_WAY - 2
    begun = [have(each.model, State.FETCHING) for each in ask(many).bring]
    plan = ask([*many, *promoted], begun)
    assert [each.model for each in plan.bring] == ["a@0"]
    begun += [have(each.model, State.LOADING) for each in plan.bring]
    assert ask([*many, *promoted], begun).bring == ()
    assert ask([*many, *promoted, back], begun).bring == (back,)


def test_e5_a_rollback_goes_first_and_then_what_more_ask_for():
    back = replace(want("z@1", first=True), served=True)
    asked = replace(want("y@1", first=True), wishes=2)
    plan = ask([want("a@1", first=True), asked, back])
    assert [each.model for each in plan.bring] == ["z@1", "y@1", "a@1"]


def test_e5_nothing_is_unloaded_while_something_is_on_its_way():
    assert ask([want("a@2")], [have("a@1"), have("a@2", State.LOADING)]).unload == ()


def test_a_fresh_version_comes_before_one_that_failed():
    failed = have("a@1", State.FAILED, fault=Fault.FETCH, attempts=1, since=0.0)
    plan = ask([want("a@1"), want("a@2")], [failed])
    assert [each.model for each in plan.bring] == ["a@2", "a@1"]


def test_nothing_is_unloaded_while_something_can_be_loaded():
    assert ask([want("a@2")], [have("a@1")]).unload == ()
    assert ask([want("a@2")], [have("a@1"), have("a@2")]).unload == ("a@1",)


def test_what_nobody_wants_stays_for_its_minimum_and_while_it_runs_something():
    young = have("a@1", since=95.0)
    assert ask([], [young]).unload == ()
    assert ask([], [young]).wait == 5.0
    assert ask([], [young], now=105.0).unload == ("a@1",)
    lately = replace(young, wanted_until=103.0)
    assert ask([], [lately], now=105.0).wait == 8.0
    assert ask([], [lately], now=113.0).unload == ("a@1",)
    running = ask([], [young], now=105.0, busy={"a@1"})
    assert running.unload == ()
    assert 0 < running.wait < math.inf
    assert ask([], [replace(young, fixed=True)], now=1e9).unload == ()


def test_other_content_under_the_same_name_replaces_the_old_when_it_is_idle():
    old = have("a@1", digest="old", since=99.0)
    assert ask([want("a@1", digest="new")], [old], busy={"a@1"}).unload == ()
    plan = ask([want("a@1", digest="new")], [old])
    assert (plan.bring, plan.unload) == ((), ("a@1",))


def test_a_bad_signature_is_tried_again_only_when_something_changed():
    failed = have("a@1", State.FAILED, fault=Fault.SIGNATURE, attempts=1, since=0.0)
    assert ask([want("a@1")], [failed], now=1e9).bring == ()
    assert ask([want("a@1", basis="y")], [failed], now=1.0).bring


@given(attempts=st.integers(1, 40))
def test_what_may_pass_is_tried_again_after_growing_pauses(attempts):
    failed = have("a@1", State.FAILED, fault=Fault.FETCH, attempts=attempts, since=100.0)
    plan = ask([want("a@1")], [failed])
    assert plan.bring == ()
    assert plan.wait == min(60.0, 2.0 ** (attempts - 1))
    assert ask([want("a@1")], [failed], now=100.0 + plan.wait).bring


def test_a_damaged_file_is_read_again_in_case_somebody_repaired_it_but_seldom():
    failed = have("a@1", State.FAILED, fault=Fault.BLOB, attempts=1, since=100.0)
    assert ask([want("a@1")], [failed]).wait == 60.0
    assert ask([want("a@1")], [replace(failed, attempts=9)]).wait == 600.0
    assert ask([want("a@1")], [failed], now=160.0).bring


def test_failures_that_nobody_asks_about_are_forgotten():
    failed = have("a@1", State.FAILED, fault=Fault.DIGEST)
    assert forgotten([], {"a@1": failed}) == ("a@1",)
    assert forgotten([want("a@1")], {"a@1": failed}) == ()
    assert forgotten([], {"a@1": replace(failed, fixed=True), "a@2": have("a@2")}) == ()


def test_the_worker_is_there_once_it_serves_or_has_nothing_to_serve_or_all_has_failed():
    failed = have("a@1", State.FAILED, fault=Fault.DIGEST)
    assert settled([], {})
    assert not settled([want("a@1")], {})
    assert settled([want("a@1")], {"a@1": failed})
    assert not settled([want("a@1"), want("b@1")], {"a@1": failed})
    assert settled([want("a@1"), want("b@1")], {"b@1": have("b@1")})
    assert not settled([want("a@1")], {"a@1": have("a@1", State.LOADING)})


helds = st.builds(
    Held,
    model=st.sampled_from(NAMES),
    state=st.sampled_from((State.READY, State.FAILED, State.FETCHING)),
    digest=st.sampled_from(("d", "e")),
    basis=st.sampled_from(("x", "y")),
    since=st.floats(0, 100),
    wanted_until=st.floats(0, 100),
    fixed=st.booleans(),
    fault=st.sampled_from(list(Fault)),
    attempts=st.integers(1, 5),
)
wanteds = st.builds(
    Wanted,
    model=st.sampled_from(NAMES),
    digest=st.sampled_from(("d", "e")),
    basis=st.sampled_from(("x", "y")),
    first=st.booleans(),
    served=st.booleans(),
    wishes=st.integers(0, 3),
)


@given(
    wanted=st.lists(wanteds, unique_by=lambda each: each.model),
    held=st.lists(helds, unique_by=lambda each: each.model),
    busy=st.frozensets(st.sampled_from(NAMES)),
    now=st.floats(100, 200),
)
def test_a_plan_never_takes_out_what_is_wanted_fixed_or_running(wanted, held, busy, now):
    plan = ask(wanted, held, busy=busy, now=now)
    by_name = {each.model: each for each in held}
    for name in plan.unload:
        assert by_name[name].state is State.READY
        assert not by_name[name].fixed
        assert name not in busy
        assert all(each.model != name or each.digest != by_name[name].digest for each in wanted)
    assert not (plan.bring and plan.unload)
    for each in plan.bring:
        begun = by_name.get(each.model)
        assert begun is None or begun.state is State.FAILED
    coming = len(plan.bring) + sum(each.state in UNDER_WAY for each in held)
    assert coming <= max(MOST_UNDER_WAY, coming - len(plan.bring))
    assert plan.wait > 0


@given(
    wanted=st.lists(wanteds, unique_by=lambda each: each.model),
    held=st.lists(helds.filter(lambda each: each.state not in UNDER_WAY), unique_by=lambda each: each.model),
)
def test_carried_out_the_plans_come_to_rest_with_everything_wanted_in_memory(wanted, held):
    """When every load succeeds and nothing runs, a bounded number of plans leads to what is wanted and nothing else."""
    books = {each.model: each for each in held}
    now = 1000.0
    for _ in range(40):
        plan = next_plan(wanted, books, now=now, busy=frozenset(), min_residency=10.0)
        for name in (*forgotten(wanted, books), *plan.unload):
            books.pop(name)
        for each in plan.bring:
            books[each.model] = Held(each.model, State.READY, each.digest, each.basis, since=now)
        if not plan.bring and not plan.unload and plan.wait == math.inf:
            break
        now += 1.0 if plan.wait == math.inf else plan.wait
    else:
        raise AssertionError("it does not come to rest")
    stuck = {name for name, each in books.items() if each.state is State.FAILED}
    assert all(books[name].basis == each.basis for each in wanted for name in [each.model] if name in stuck)
    fixed = {name for name, each in books.items() if each.fixed}
    assert books.keys() - stuck - fixed == {each.model for each in wanted} - stuck - fixed
