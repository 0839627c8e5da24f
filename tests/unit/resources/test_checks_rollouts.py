"""What the registry accepts and refuses of rollouts: each rule once broken, each bound at its edge."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.clock.stamps import timestamp
from libs.resources.checks.rollouts import WHOLE, check_rollout, check_switch
from libs.resources.snapshot import RegistrySnapshot
from tests.support.messages import EMPTY, fields_of, having, seconds


def alias(name: str, *versions: str) -> pb.Alias:
    return pb.Alias(name=name, targets=[pb.AliasTarget(model_version=version) for version in versions])


def arm(name: str, version: str, weight: int = 0) -> pb.RolloutArm:
    return pb.RolloutArm(name=name, model_version=version, weight=weight)


def step(weight: int, least: float | None = None, most: float | None = None) -> pb.RolloutStep:
    made = pb.RolloutStep(weight=weight)
    return having(
        made,
        **{
            name: seconds(value)
            for name, value in (("min_duration", least), ("max_duration", most))
            if value is not None
        },
    )


SNAPSHOT = RegistrySnapshot(
    aliases={
        "fast": alias("fast", "fast@1"),
        "split": alias("split", "fast@1", "fast@2"),
        "bare": alias("bare"),
    }
)
CANARY = pb.Rollout(
    alias="fast",
    arms=[arm("canary", "fast@2")],
    steps=[step(100), step(1000, 60.0, 3600.0)],
    reason="better",
)
EXPERIMENT = having(CANARY, steps=None, arms=[arm("b", "fast@2", 4000), arm("c", "fast@3", 5999)])
GATE = pb.Gate(metric="ttft_p95", tolerance=0.1)


def shadow(**changes: Any) -> dict[str, Any]:
    return {"shadow": pb.ShadowPlan(**{"share": 500, **changes})}


def radius(**changes: Any) -> dict[str, Any]:
    return {"blast_radius": pb.BlastRadius(**changes)}


def gate(**changes: Any) -> dict[str, Any]:
    return {"gates": [GATE, having(GATE, **{"metric": "itl", **changes})]}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        # Whether it exists is asked of all references alike.
        ({"alias": "gone"}, []),
        ({"alias": "bare"}, []),
        ({"arms": [arm("canary", "gone@1")]}, []),
        ({"alias": "split"}, ["metadata.name"]),
        ({"arms": []}, ["spec.arms"]),
        ({"arms": [arm("a", "fast@2"), arm("b", "fast@3")]}, ["spec.arms"]),
        ({"arms": [arm("baseline", "fast@2")]}, ["spec.arms[0].name"]),
        ({"arms": [arm("No!", "fast@2")]}, ["spec.arms[0].name"]),
        ({"arms": [arm("canary", "")]}, ["spec.arms[0].model_version"]),
        ({"alias": "gone", "arms": [arm("canary", "")]}, ["spec.arms[0].model_version"]),
        ({"arms": [arm("canary", "fast@1")]}, ["spec.arms[0].model_version"]),
        ({"arms": [arm("canary", "fast@2", 1)]}, ["spec.arms[0].weight"]),
        ({"steps": [step(WHOLE - 1)]}, []),
        ({"steps": [step(5), step(WHOLE)]}, ["spec.steps[1].weight"]),
        ({"steps": [step(0)]}, ["spec.steps[0].weight"] * 2),
        ({"steps": [step(WHOLE + 1)]}, ["spec.steps[0].weight"] * 2),
        ({"steps": [step(5), step(5)]}, ["spec.steps[1].weight"]),
        ({"steps": [step(5), step(4)]}, ["spec.steps[1].weight"]),
        ({"steps": [step(number) for number in range(1, 21)]}, []),
        ({"steps": [step(number) for number in range(1, 22)]}, ["spec.steps"]),
        ({"steps": [step(5, 0.0, 30 * 86400.0)]}, []),
        ({"steps": [step(5, 60.0, 60.0)]}, []),
        ({"steps": [step(5, -1.0)]}, ["spec.steps[0].min_duration"]),
        ({"steps": [step(5, None, 30 * 86400.0 + 1)]}, ["spec.steps[0].max_duration"]),
        ({"steps": [step(5, 60.0, 59.0)]}, ["spec.steps[0].max_duration"]),
        ({"steps": [step(500), step(1001)], **radius(max_share=1000)}, ["spec.steps[1].weight"]),
        ({"steps": [step(500), step(1000)], **radius(max_share=1000)}, []),
        (radius(max_share=WHOLE), []),
        (radius(max_share=WHOLE + 1), ["spec.blast_radius.max_share"]),
        (radius(max_cost_microusd=10**15), []),
        (radius(max_cost_microusd=10**15 + 1), ["spec.blast_radius.max_cost_microusd"]),
        (radius(only_tenants=["acme", ""]), ["spec.blast_radius.only_tenants[1]"]),
        (radius(only_tenants=["acme"], except_tenants=["globex"]), []),
        (radius(only_tenants=["acme"], except_tenants=["acme"]), ["spec.blast_radius.except_tenants"]),
        (radius(only_tenants=["acme"] * 1000), []),
        (radius(only_tenants=["acme"] * 1001), ["spec.blast_radius.only_tenants"]),
        (radius(except_tenants=["acme"] * 1001), ["spec.blast_radius.except_tenants"]),
        (shadow(), []),
        (shadow(share=0), ["spec.shadow.share"]),
        (shadow(share=WHOLE), []),
        (shadow(share=WHOLE + 1), ["spec.shadow.share"]),
        (shadow(requests_per_minute=10**12 + 1), ["spec.shadow.requests_per_minute"]),
        (shadow(tokens_per_minute=10**12 + 1), ["spec.shadow.tokens_per_minute"]),
        (shadow(min_duration=seconds(5.0), max_duration=seconds(4.0)), ["spec.shadow.max_duration"]),
        (gate(), []),
        (gate(metric="score:exact"), []),
        (gate(metric="score:exact", at_least=0.9, lower_is_better=True), []),
        (gate(metric="score:"), ["spec.gates[1].metric"]),
        (gate(metric="speed"), ["spec.gates[1].metric"]),
        (gate(metric="ttft_p95"), ["spec.gates[1].metric"]),
        # One to hold early, one to roll back late.
        (gate(metric="ttft_p95", on_breach=pb.GATE_ACTION_HOLD), []),
        # Unset means to roll back, which the first does already.
        (gate(metric="ttft_p95", on_breach=pb.GATE_ACTION_ROLL_BACK), ["spec.gates[1].metric"]),
        (gate(on_breach=3), ["spec.gates[1].on_breach"]),
        (gate(tolerance=-0.1), ["spec.gates[1].tolerance"]),
        (gate(tolerance=math.nan), ["spec.gates[1].tolerance"]),
        (gate(tolerance=math.inf), ["spec.gates[1].tolerance"]),
        (gate(at_least=0.0), ["spec.gates[1].metric"]),
        (gate(lower_is_better=True), ["spec.gates[1].metric"]),
        (gate(metric="score:exact", at_least=math.nan), ["spec.gates[1].at_least"]),
        ({"gates": [having(GATE, metric=f"score:s{number}") for number in range(30)]}, []),
        ({"gates": [having(GATE, metric=f"score:s{number}") for number in range(31)]}, ["spec.gates"]),
        ({"sticky": pb.STICKY_BY_SESSION, "on_rollback": pb.IN_FLIGHT_MIGRATE}, []),
        ({"sticky": 4}, ["spec.sticky"]),
        ({"on_rollback": 3}, ["spec.on_rollback"]),
        ({"alpha": 0.5}, []),
        ({"alpha": 0.51}, ["spec.alpha"]),
        ({"alpha": -0.01}, ["spec.alpha"]),
        ({"alpha": math.nan}, ["spec.alpha"]),
        ({"capacity_share": 1.0}, []),
        ({"capacity_share": 1.01}, ["spec.capacity_share"]),
        ({"capacity_share": math.nan}, ["spec.capacity_share"]),
        ({"keep_warm": seconds(0.0)}, []),
        ({"keep_warm": seconds(-1.0)}, ["spec.keep_warm"]),
        ({"keep_warm": seconds(30 * 86400.0 + 1)}, ["spec.keep_warm"]),
        ({"prepare_timeout": seconds(86400.0)}, []),
        ({"prepare_timeout": seconds(0.0)}, ["spec.prepare_timeout"]),
        ({"prepare_timeout": seconds(86401.0)}, ["spec.prepare_timeout"]),
        ({"reason": ""}, ["spec.reason"]),
        ({"reason": "x" * 500}, []),
        ({"reason": "x" * 501}, ["spec.reason"]),
        ({"override_reason": "\n"}, ["spec.override_reason"]),
        ({"override_reason": "x" * 501}, ["spec.override_reason"]),
    ],
)
def test_canaries(changes: dict[str, Any], fields: list[str]) -> None:
    assert fields_of(check_rollout, having(CANARY, **changes), SNAPSHOT) == fields


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({}, []),
        ({"arms": [arm("b", "fast@2", 0)]}, ["spec.arms[0].weight"]),
        ({"arms": [arm("b", "fast@2", WHOLE)]}, ["spec.arms[0].weight", "spec.arms"]),
        ({"arms": [arm("b", "fast@2", WHOLE - 1)]}, []),
        ({"arms": [arm("b", "fast@2", 4000), arm("c", "fast@3", 6000)]}, ["spec.arms"]),
        ({"arms": [arm("b", "fast@2", 1), arm("b", "fast@3", 1)]}, ["spec.arms[1].name"]),
        ({"arms": [arm("b", "fast@2", 1), arm("c", "fast@2", 1)]}, ["spec.arms[1].model_version"]),
        ({"arms": [arm(f"a{number}", f"fast@{number + 2}", 1) for number in range(8)]}, []),
        ({"arms": [arm(f"a{number}", f"fast@{number + 2}", 1) for number in range(9)]}, ["spec.arms"]),
        (radius(max_share=9999), []),
        (radius(max_share=9998), ["spec.arms"]),
    ],
)
def test_experiments(changes: dict[str, Any], fields: list[str]) -> None:
    assert fields_of(check_rollout, having(EXPERIMENT, **changes), SNAPSHOT) == fields


def test_all_faults_of_a_rollout_come_at_once() -> None:
    wrong = having(
        CANARY,
        alias="split",
        arms=[arm("baseline", "fast@1")],
        steps=[step(5), step(5, -1.0)],
        sticky=9,
        alpha=math.nan,
        reason="",
        **shadow(share=0),
        **gate(metric="speed", tolerance=-1.0),
    )
    assert fields_of(check_rollout, wrong, SNAPSHOT) == [
        "metadata.name",
        "spec.arms[0].name",
        "spec.arms[0].model_version",
        "spec.steps[1].weight",
        "spec.steps[1].min_duration",
        "spec.shadow.share",
        "spec.gates[1].metric",
        "spec.gates[1].tolerance",
        "spec.sticky",
        "spec.alpha",
        "spec.reason",
    ]


def test_a_stored_rollout_is_held_against_its_own_baseline() -> None:
    begun = having(CANARY, baseline="fast@1", state=pb.RolloutState(phase=pb.ROLLOUT_PHASE_CANARY))
    moved = RegistrySnapshot(aliases={"fast": alias("fast", "fast@2")}, rollouts={"fast": begun})
    assert fields_of(check_rollout, begun, moved) == []
    own = having(begun, arms=[arm("canary", "fast@1")])
    assert fields_of(check_rollout, own, moved) == ["spec.arms[0].model_version"]


def test_what_the_alias_gives_after_the_end_is_nothing_to_the_rollout() -> None:
    state = pb.RolloutState(phase=pb.ROLLOUT_PHASE_PROMOTED, ended_at=timestamp(5.0))
    promoted = having(CANARY, baseline="fast@1", state=state)
    for targets in (["fast@2"], ["fast@1", "fast@2"], []):
        after = RegistrySnapshot(aliases={"fast": alias("fast", *targets)}, rollouts={"fast": promoted})
        assert fields_of(check_rollout, promoted, after) == []
    assert fields_of(check_rollout, having(promoted, baseline=""), after) == []
    assert fields_of(check_rollout, having(promoted, steps=[step(0)]), after) == ["spec.steps[0].weight"] * 2


def test_whose_version_it_is_already() -> None:
    baseline, other = check_rollout(
        having(EXPERIMENT, arms=[arm("a", "fast@1", 1), arm("b", "fast@2", 1), arm("c", "fast@2", 1)]), SNAPSHOT
    )
    assert "the baseline's" in baseline.message
    assert "another arm's" in other.message


@given(st.lists(st.integers(1, WHOLE), min_size=1, max_size=20), st.integers(0, WHOLE))
def test_good_steps_never_exceed_what_is_allowed(weights: list[int], most: int) -> None:
    message = having(CANARY, steps=[step(weight) for weight in weights], **radius(max_share=most))
    good = not fields_of(check_rollout, message, SNAPSHOT)
    assert good == (weights == sorted(set(weights)) and weights[-1] <= (most or WHOLE) and weights[-1] < WHOLE)


@given(st.lists(st.integers(0, WHOLE), min_size=1, max_size=8), st.integers(0, WHOLE))
def test_good_experiments_leave_the_baseline_its_share(weights: list[int], most: int) -> None:
    arms = [arm(f"a{number}", f"fast@{number + 2}", weight) for number, weight in enumerate(weights)]
    good = not fields_of(check_rollout, having(EXPERIMENT, arms=arms, **radius(max_share=most)), SNAPSHOT)
    assert good == (min(weights) >= 1 and sum(weights) < WHOLE and sum(weights) <= (most or WHOLE))


@pytest.mark.parametrize(
    ("switch", "fields"),
    [
        (pb.RolloutSwitch(), []),
        (pb.RolloutSwitch(kill=True, reason="fire"), []),
        (pb.RolloutSwitch(freeze=True, reason="r" * 500), []),
        (pb.RolloutSwitch(reason="over"), []),
        (pb.RolloutSwitch(kill=True), ["spec.reason"]),
        (pb.RolloutSwitch(freeze=True), ["spec.reason"]),
        (pb.RolloutSwitch(reason="r" * 501), ["spec.reason"]),
        (pb.RolloutSwitch(kill=True, reason="\0" * 501), ["spec.reason", "spec.reason"]),
    ],
)
def test_switch(switch: pb.RolloutSwitch, fields: list[str]) -> None:
    assert fields_of(check_switch, switch, EMPTY) == fields
