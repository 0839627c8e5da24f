"""Where operators may move a rollout to, and how states of the registry differ."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from services.registry.history import backwards, fold
from services.registry.policy.steering import OVER, Phase, Place, place_after


def walked(steps: int, shadow: bool) -> list[Place]:
    """All places from the beginning to the end."""
    place: Place | None = Place(Phase.PREPARING)
    found = []
    while place is not None:
        found.append(place)
        place = place_after(place, steps=steps, shadow=shadow)
    return found


@given(st.integers(0, 20), st.booleans())
def test_steering_goes_through_every_place_once(steps: int, shadow: bool) -> None:
    places = walked(steps, shadow)
    assert len(set(places)) == len(places)
    assert (Place(Phase.SHADOW) in places) == shadow
    assert [place.step for place in places if place.phase is Phase.CANARY] == list(range(steps))
    assert places[-1].phase is (Phase.PROMOTED if steps else Phase.EXPERIMENT)


def test_nothing_follows_an_end() -> None:
    assert all(place_after(Place(phase), steps=3, shadow=True) is None for phase in OVER)


def test_phases_are_the_protos() -> None:
    numbers = {name.removeprefix("ROLLOUT_PHASE_"): number for name, number in pb.RolloutPhase.items()}
    assert {phase.name: phase.value for phase in Phase} == {n: v for n, v in numbers.items() if v}


STATES = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2"]), max_size=3), min_size=1, max_size=6
)


@given(STATES)
def test_differences_lead_from_the_first_state_to_the_last(states: list[dict[str, str]]) -> None:
    steps = [
        pb.ResourceChange(resource=name, before=before.get(name, ""), after=after.get(name, ""))
        for before, after in itertools.pairwise(states)
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    found = fold(steps)
    there = dict(states[0])
    for each in found:
        assert there.get(each.resource, "") == each.before != each.after
        there[each.resource] = each.after
    assert {name: value for name, value in there.items() if value} == states[-1]
    for each in backwards(found):
        there[each.resource] = each.after
    assert {name: value for name, value in there.items() if value} == states[0]
