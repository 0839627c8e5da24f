"""Which rollouts may begin: each rule once broken, each bound at its edge."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.registry.policy import rollouts
from services.registry.policy.differences import Difference, backwards, fold
from services.registry.policy.rollouts import (
    WHOLE,
    ArmSpec,
    GateSpec,
    RadiusSpec,
    RolloutSpec,
    ShadowSpec,
    StepSpec,
    VersionFacts,
    World,
    check_frozen,
    check_now,
    check_rollout,
)
from services.registry.policy.steering import OVER, Phase, Place, place_after

WORLD = World(
    aliases={"fast": ["fast@1"], "split": ["fast@1", "fast@2"]},
    versions={
        "fast@1": VersionFacts("fast", "fast"),
        "fast@2": VersionFacts("fast", "fast"),
        "fast@3": VersionFacts("fast", "fast"),
        "big@1": VersionFacts("big", "quality"),
    },
    tenants={"acme", "globex"},
    live=set(),
    workers={"fast": 4, "big": 2},
    objectives={"fast", "quality"},
    killed="",
    frozen="",
    exhausted={},
)
RADIUS = RadiusSpec(max_share=0, only_tenants=(), except_tenants=(), max_cost_microusd=0)
CANARY = RolloutSpec(
    alias="fast",
    arms=[ArmSpec("canary", "fast@2", 0)],
    steps=[StepSpec(100, None, None), StepSpec(1000, 60.0, 3600.0)],
    shadow=None,
    radius=RADIUS,
    gates=[],
    alpha=0.0,
    capacity_share=0.0,
    keep_warm=None,
    prepare_timeout=None,
    reason="better",
    override_reason="",
)
EXPERIMENT = dataclasses.replace(CANARY, steps=[], arms=[ArmSpec("b", "fast@2", 4000), ArmSpec("c", "fast@3", 5999)])
SHADOW = ShadowSpec(500, None, None, 0, 0)
GATE = GateSpec("ttft_p95", 0.1, 0, False, None)


def step(weight: int, least: float | None = None, most: float | None = None) -> StepSpec:
    return StepSpec(weight, least, most)


def shadow(**changes: Any) -> dict[str, Any]:
    return {"shadow": dataclasses.replace(SHADOW, **changes)}


def radius(**changes: Any) -> dict[str, Any]:
    return {"radius": dataclasses.replace(RADIUS, **changes)}


def gate(**changes: Any) -> dict[str, Any]:
    return {"gates": [GATE, dataclasses.replace(GATE, **{"metric": "itl", **changes})]}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"alias": "gone"}, "rollout.alias"),
        ({"alias": "split"}, "rollout.alias"),
        ({"arms": []}, "rollout.arms"),
        ({"arms": [ArmSpec("a", "fast@2", 0), ArmSpec("b", "fast@3", 0)]}, "rollout.arms"),
        ({"arms": [ArmSpec("baseline", "fast@2", 0)]}, "rollout.arms[0].name"),
        ({"arms": [ArmSpec("No!", "fast@2", 0)]}, "rollout.arms[0].name"),
        ({"arms": [ArmSpec("canary", "gone@1", 0)]}, "rollout.arms[0].model_version"),
        ({"arms": [ArmSpec("canary", "fast@1", 0)]}, "rollout.arms[0].model_version"),
        ({"arms": [ArmSpec("canary", "fast@2", 1)]}, "rollout.arms[0].weight"),
        ({"steps": [step(WHOLE - 1)]}, None),
        ({"steps": [step(5), step(WHOLE)]}, "rollout.steps[1].weight"),
        ({"steps": [step(0)]}, "rollout.steps[0].weight"),
        ({"steps": [step(WHOLE + 1)]}, "rollout.steps[0].weight"),
        ({"steps": [step(5), step(5)]}, "rollout.steps[1].weight"),
        ({"steps": [step(5), step(4)]}, "rollout.steps[1].weight"),
        ({"steps": [step(number) for number in range(1, 22)]}, "rollout.steps"),
        ({"steps": [step(5, -1.0)]}, "rollout.steps[0].min_duration"),
        ({"steps": [step(5, None, 31 * 86400.0)]}, "rollout.steps[0].max_duration"),
        ({"steps": [step(5, 60.0, 59.0)]}, "rollout.steps[0].max_duration"),
        ({"steps": [step(500), step(1001)], **radius(max_share=1000)}, "rollout.steps[1].weight"),
        ({"steps": [step(500), step(1000)], **radius(max_share=1000)}, None),
        (radius(max_share=WHOLE + 1), "rollout.blast_radius.max_share"),
        (radius(max_cost_microusd=10**15 + 1), "rollout.blast_radius.max_cost_microusd"),
        (radius(only_tenants=["acme", "gone"]), "rollout.blast_radius.only_tenants[1]"),
        (radius(except_tenants=["gone"]), "rollout.blast_radius.except_tenants[0]"),
        (radius(only_tenants=["acme"], except_tenants=["globex"]), None),
        (radius(only_tenants=["acme"], except_tenants=["acme"]), "rollout.blast_radius.except_tenants"),
        (radius(only_tenants=["acme"] * 1001), "rollout.blast_radius.only_tenants"),
        (shadow(), None),
        (shadow(share=0), "rollout.shadow.share"),
        (shadow(share=WHOLE + 1), "rollout.shadow.share"),
        (shadow(requests_per_minute=10**12 + 1), "rollout.shadow.requests_per_minute"),
        (shadow(tokens_per_minute=10**12 + 1), "rollout.shadow.tokens_per_minute"),
        (shadow(min_duration=5.0, max_duration=4.0), "rollout.shadow.max_duration"),
        (gate(), None),
        (gate(metric="score:exact"), None),
        (gate(metric="score:exact", at_least=0.9, lower_is_better=False), None),
        (gate(metric="score:"), "rollout.gates[1].metric"),
        (gate(metric="speed"), "rollout.gates[1].metric"),
        (gate(metric="ttft_p95"), "rollout.gates[1].metric"),
        # One to hold early, one to roll back late.
        (gate(metric="ttft_p95", on_breach=2), None),
        # Unset means to roll back, which the first does already.
        (gate(metric="ttft_p95", on_breach=1), "rollout.gates[1].metric"),
        (gate(tolerance=-0.1), "rollout.gates[1].tolerance"),
        (gate(tolerance=math.nan), "rollout.gates[1].tolerance"),
        (gate(tolerance=math.inf), "rollout.gates[1].tolerance"),
        (gate(at_least=0.9), "rollout.gates[1].metric"),
        (gate(lower_is_better=True), "rollout.gates[1].metric"),
        (gate(metric="score:exact", at_least=math.nan), "rollout.gates[1].at_least"),
        ({"gates": [GATE] * 31}, "rollout.gates"),
        ({"alpha": 0.5}, None),
        ({"alpha": 0.51}, "rollout.alpha"),
        ({"alpha": -0.01}, "rollout.alpha"),
        ({"alpha": math.nan}, "rollout.alpha"),
        ({"capacity_share": 1.0}, None),
        ({"capacity_share": 1.01}, "rollout.capacity_share"),
        ({"capacity_share": math.nan}, "rollout.capacity_share"),
        ({"keep_warm": 0.0}, None),
        ({"keep_warm": -1.0}, "rollout.keep_warm"),
        ({"prepare_timeout": 0.0}, "rollout.prepare_timeout"),
        ({"prepare_timeout": 86401.0}, "rollout.prepare_timeout"),
        ({"reason": ""}, "rollout.reason"),
        ({"reason": "x" * 501}, "rollout.reason"),
        ({"override_reason": "\n"}, "rollout.override_reason"),
    ],
)
def test_canaries(changes: dict[str, Any], field: str | None) -> None:
    fault = check_rollout(dataclasses.replace(CANARY, **changes), WORLD)
    assert (fault.field if fault else None) == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"arms": [ArmSpec("b", "fast@2", 0)]}, "rollout.arms[0].weight"),
        ({"arms": [ArmSpec("b", "fast@2", WHOLE)]}, "rollout.arms[0].weight"),
        ({"arms": [ArmSpec("b", "fast@2", WHOLE - 1)]}, None),
        ({"arms": [ArmSpec("b", "fast@2", 4000), ArmSpec("c", "fast@3", 6000)]}, "rollout.arms"),
        ({"arms": [ArmSpec("b", "fast@2", 1), ArmSpec("b", "fast@3", 1)]}, "rollout.arms[1].name"),
        ({"arms": [ArmSpec("b", "fast@2", 1), ArmSpec("c", "fast@2", 1)]}, "rollout.arms[1].model_version"),
        (radius(max_share=9998), "rollout.arms"),
    ],
)
def test_experiments(changes: dict[str, Any], field: str | None) -> None:
    fault = check_rollout(dataclasses.replace(EXPERIMENT, **changes), WORLD)
    assert (fault.field if fault else None) == field


BIG = dataclasses.replace(CANARY, arms=[ArmSpec("canary", "big@1", 0)], steps=[step(5000)])


@pytest.mark.parametrize(
    ("spec", "world", "field"),
    [
        (CANARY, {}, None),
        (CANARY, {"live": {"fast"}}, "rollout.alias"),
        (CANARY, {"live": {"other"}}, None),
        (CANARY, {"killed": "fire"}, "switch.kill"),
        (CANARY, {"frozen": "holidays"}, "switch.freeze"),
        (CANARY, {"exhausted": {"fast": ["availability 120%"]}}, "budget"),
        (CANARY, {"exhausted": {"quality": ["availability 120%"]}}, None),
        (CANARY, {"objectives": {"quality"}}, "slo"),
        (CANARY, {"workers": {"big": 9}}, "rollout.arms[0].model_version"),
        (CANARY, {"workers": {"fast": 1}}, None),
        (BIG, {}, None),
        (BIG, {"objectives": {"fast"}}, "slo"),
        (BIG, {"exhausted": {"quality": ["ttft_p95 100%"]}}, "budget"),
        # Half of what four workers serve needs two of the other pool.
        (BIG, {"workers": {"fast": 4, "big": 1}}, "rollout.arms[0].model_version"),
        (BIG, {"workers": {"fast": 5, "big": 2}}, "rollout.arms[0].model_version"),
        # A baseline without workers cannot serve as a measure.
        (BIG, {"workers": {"big": 1}}, None),
    ],
)
def test_what_the_mesh_allows_now(spec: RolloutSpec, world: dict[str, Any], field: str | None) -> None:
    fault = check_now(spec, dataclasses.replace(WORLD, **world))
    assert (fault.field if fault else None) == field


def test_overriding_lifts_the_freeze_and_nothing_else() -> None:
    spec = dataclasses.replace(CANARY, override_reason="it is the fix")
    frozen = dataclasses.replace(WORLD, frozen="holidays", exhausted={"fast": ["availability 120%"]})
    assert check_now(spec, frozen) is None
    killed = check_now(spec, dataclasses.replace(frozen, killed="fire"))
    assert killed is not None
    assert "fire" in killed.message
    budget = check_frozen({"fast"}, dataclasses.replace(frozen, frozen=""))
    assert budget is not None
    assert "availability 120%" in budget.message


def test_baseline_names_match() -> None:
    from libs.rollouts import BASELINE
    from libs.rollouts.exposure import WHOLE as ALL

    assert (rollouts.BASELINE, rollouts.WHOLE) == (BASELINE, ALL)


@given(st.lists(st.integers(1, WHOLE), min_size=1, max_size=20), st.integers(0, WHOLE))
def test_good_steps_never_exceed_what_is_allowed(weights: list[int], most: int) -> None:
    spec = dataclasses.replace(
        CANARY, steps=[step(weight) for weight in weights], radius=dataclasses.replace(RADIUS, max_share=most)
    )
    good = check_rollout(spec, WORLD) is None
    assert good == (weights == sorted(set(weights)) and weights[-1] <= (most or WHOLE) and weights[-1] < WHOLE)
    assert not good or spec.largest_shares == (weights[-1],)


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
    from weir.registry.v1 import registry_pb2 as pb

    numbers = {name.removeprefix("ROLLOUT_PHASE_"): number for name, number in pb.RolloutPhase.items()}
    assert {phase.name: phase.value for phase in Phase} == {n: v for n, v in numbers.items() if v}


STATES = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2"]), max_size=3), min_size=1, max_size=6
)


@given(STATES)
def test_differences_lead_from_the_first_state_to_the_last(states: list[dict[str, str]]) -> None:
    steps = [
        Difference(name, before.get(name, ""), after.get(name, ""))
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
