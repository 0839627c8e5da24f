"""What is needed is never less than what callers may be given."""

from __future__ import annotations

from typing import Any

from google.protobuf import duration_pb2, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import KeyValue, RegistrySnapshot, keys, snapshot_of
from libs.rollouts import arms_of, desired_versions, exposed, in_force, is_live, needed_versions, phase_of, warm_until

VERSIONS = tuple(f"m@{number}" for number in range(5))
NOW = 10_000.0


def snapshot(*messages: Any) -> RegistrySnapshot:
    return snapshot_of([KeyValue(keys.key_of(message), keys.encode(message), 1) for message in messages], 1)


def version(name: str, pool: str = "p", base: str = "") -> pb.ModelVersion:
    model, _, number = name.partition("@")
    return pb.ModelVersion(name=model, version=number, pool=pool, provenance=pb.Provenance(base=base))


def alias(name: str, *versions: str) -> pb.Alias:
    return pb.Alias(name=name, targets=[pb.AliasTarget(model_version=each, weight=1) for each in versions])


def rollout(
    name: str,
    baseline: str,
    *arms: str,
    phase: int = 3,
    ended: float = 0.0,
    keep: float | None = None,
    weight: int = 10,
) -> pb.Rollout:
    made = pb.Rollout(
        alias=name,
        baseline=baseline,
        arms=[pb.RolloutArm(name=f"a{number}", model_version=each) for number, each in enumerate(arms)],
        state=pb.RolloutState(phase=phase, weights=[10] * len(arms)),
    )
    if ended:
        made.state.ended_at.CopyFrom(timestamp_pb2.Timestamp(seconds=int(ended)))
    if keep is not None:
        made.keep_warm.CopyFrom(duration_pb2.Duration(seconds=int(keep)))
    return made


NAMES = st.sampled_from(["x", "y"])
KNOWN = st.sampled_from(VERSIONS)


@st.composite
def worlds(draw: st.DrawFn) -> RegistrySnapshot:
    made: list[Any] = [
        version(name, pool=draw(st.sampled_from(["p", "q"])), base=draw(st.sampled_from(["", *VERSIONS])))
        for name in VERSIONS
    ]
    made += [alias(name, *draw(st.lists(KNOWN, min_size=1, max_size=2))) for name in draw(st.sets(NAMES))]
    made += [
        rollout(
            name,
            draw(KNOWN),
            *draw(st.lists(KNOWN, min_size=1, max_size=3)),
            phase=draw(st.integers(0, 7)),
            ended=draw(st.sampled_from([0.0, NOW - 1000, NOW - 10])),
            keep=draw(st.sampled_from([None, 0.0, 100.0])),
        )
        for name in draw(st.sets(NAMES))
    ]
    made += [pb.Pin(model_version=name, warm=draw(st.booleans())) for name in draw(st.sets(KNOWN, max_size=2))]
    if draw(st.booleans()):
        states = [pb.ModelState(model_version=draw(KNOWN), state=draw(st.integers(0, 5)))]
        made.append(
            pb.Endpoint(
                service="worker", instance="w", pool="p", model_versions=draw(st.lists(KNOWN)), model_states=states
            )
        )
    if draw(st.booleans()):
        made.append(pb.RolloutSwitch(kill=True))
    return snapshot(*made)


@given(worlds())
def test_whatever_callers_may_be_given_is_loaded_and_kept(world: RegistrySnapshot) -> None:
    needed = needed_versions(world, NOW)
    desired = {name for pool in ("p", "q") for name in desired_versions(world, pool, NOW)}
    given_now = {target.model_version for each in world.aliases.values() for target in each.targets}
    for name in world.aliases:
        running = in_force(world, name)
        if running is not None:
            given_now |= {arm.model_version for arm in arms_of(running)}
    assert given_now <= desired
    assert desired <= needed.keys()
    for endpoint in world.endpoints.values():
        assert set(endpoint.model_versions) <= needed.keys()
    assert set(world.pins) <= needed.keys()
    assert all(reasons for reasons in needed.values())


@given(worlds())
def test_what_is_needed_brings_what_it_was_made_from(world: RegistrySnapshot) -> None:
    needed = needed_versions(world, NOW)
    for name in needed:
        base = world.model_versions[name].provenance.base
        assert not base or base in needed


@given(worlds())
def test_pools_share_nothing_and_later_needs_are_no_more(world: RegistrySnapshot) -> None:
    here, there = desired_versions(world, "p", NOW), desired_versions(world, "q", NOW)
    assert not here.keys() & there.keys()
    # With time only warmth ends.
    assert needed_versions(world, NOW + 1e6).keys() <= needed_versions(world, NOW).keys()


@given(worlds())
def test_shares_are_whole_and_none_without_exposure(world: RegistrySnapshot) -> None:
    for each in world.rollouts.values():
        arms = arms_of(each)
        assert sum(arm.weight for arm in arms) == 10_000
        assert arms[0].model_version == each.baseline
        if not exposed(each):
            assert arms[0].weight == 10_000


def test_the_killed_the_prepared_and_the_overtaken_are_not_in_force() -> None:
    base = (version("m@0"), version("m@1"), alias("x", "m@0"))
    running = rollout("x", "m@0", "m@1")
    assert in_force(snapshot(*base, running), "x") is not None
    assert in_force(snapshot(*base, running), "y") is None
    for phase in (0, 1, 5, 6, 7):
        assert in_force(snapshot(*base, rollout("x", "m@0", "m@1", phase=phase)), "x") is None
    assert in_force(snapshot(*base, running, pb.RolloutSwitch(kill=True)), "x") is None
    assert in_force(snapshot(*base, running, pb.RolloutSwitch(freeze=True)), "x") is not None
    moved = snapshot(version("m@0"), version("m@1"), alias("x", "m@1"), running)
    assert in_force(moved, "x") is None
    assert in_force(snapshot(running), "x") is None


def test_the_old_version_stays_warm_for_a_while() -> None:
    promoted = rollout("x", "m@0", "m@1", phase=pb.ROLLOUT_PHASE_PROMOTED, ended=NOW, keep=60)
    assert not is_live(promoted)
    assert warm_until(promoted) == NOW + 60
    world = snapshot(version("m@0"), version("m@1"), alias("x", "m@1"), promoted)
    assert set(desired_versions(world, "p", NOW + 59)) == {"m@0", "m@1"}
    assert set(desired_versions(world, "p", NOW + 60)) == {"m@1"}
    assert "m@0" not in needed_versions(world, NOW + 60)
    promoted.ClearField("keep_warm")
    assert warm_until(promoted) == NOW + 600
    assert warm_until(rollout("x", "m@0", "m@1")) == 0.0
    assert phase_of(pb.Rollout()) == pb.ROLLOUT_PHASE_PREPARING
    # Rolled back or aborted, the alias itself keeps the baseline.
    for phase in (6, 7):
        ended = rollout("x", "m@0", "m@1", phase=phase, ended=NOW)
        world = snapshot(version("m@0"), version("m@1"), alias("x", "m@0"), ended)
        assert set(desired_versions(world, "p", NOW)) == {"m@0"}


def test_what_failed_on_a_worker_is_not_kept_for_it() -> None:
    worker = pb.Endpoint(
        service="worker",
        instance="w",
        pool="p",
        model_states=[
            pb.ModelState(model_version="m@0", state=pb.LOAD_STATE_FAILED),
            pb.ModelState(model_version="m@1", state=pb.LOAD_STATE_FETCHING),
        ],
    )
    needed = needed_versions(snapshot(version("m@0"), version("m@1"), worker), NOW)
    assert dict(needed) == {"m@1": ("worker w",)}
