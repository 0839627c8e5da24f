"""The index of requests on arms: complete, and empty once they are gone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import RegistrySnapshot
from libs.routing import Route
from services.gateway.membership import Member, Membership, TakenOut, out_of_force

ARMS = ("b", "c")
PHASES = (
    pb.ROLLOUT_PHASE_PREPARING,
    pb.ROLLOUT_PHASE_SHADOW,
    pb.ROLLOUT_PHASE_CANARY,
    pb.ROLLOUT_PHASE_EXPERIMENT,
    pb.ROLLOUT_PHASE_PROMOTED,
    pb.ROLLOUT_PHASE_ROLLED_BACK,
    pb.ROLLOUT_PHASE_ABORTED,
)


def snapshot_of(
    revision: int,
    *,
    rollout: str = "r1",
    phase: int = PHASES[3],
    weights: tuple[int, ...] = (100, 200),
    kill: bool = False,
) -> RegistrySnapshot:
    state = pb.RolloutState(phase=cast(Any, phase), weights=weights)
    arms = [pb.RolloutArm(name=name, model_version=f"tiny@{name}") for name in ARMS]
    return RegistrySnapshot(
        revision=revision,
        aliases={"tiny": pb.Alias(name="tiny", targets=[pb.AliasTarget(model_version="tiny@1", weight=1)])},
        rollouts={"tiny": pb.Rollout(alias="tiny", id=rollout, baseline="tiny@1", arms=arms, state=state)},
        switches={"rollouts": pb.RolloutSwitch(kill=kill)},
    )


def route(arm: str, revision: int, rollout: str = "r1") -> Route:
    return Route(f"tiny@{arm}", arm, "pool", "fast", (), revision, rollout)


class World:
    """An index over a catalog that a test moves on."""

    def __init__(self) -> None:
        self.catalog = SimpleNamespace(snapshot=snapshot_of(1))
        self.membership = Membership(cast(Any, self.catalog), cast(Any, None))
        self.gone: list[tuple[Member, bool]] = []

    def member(self) -> Member:
        member = Member(self.membership)
        member.on_taken_out = lambda migrate: self.gone.append((member, migrate))
        return member

    def enter(self, member: Member, arm: str, *, revision: int | None = None, rollout: str = "r1") -> bool:
        at = self.catalog.snapshot.revision if revision is None else revision
        try:
            self.membership.enter(member, "tiny", route(arm, at, rollout))
        except TakenOut:
            return False
        return True

    def taken_out(self) -> list[tuple[Member, bool]]:
        """The members that have to go, and whether they migrate."""
        self.gone.clear()
        self.membership.changed()
        return list(self.gone)

    def change(self, **fields: Any) -> set[int]:
        """The ids of those that have to go."""
        self.catalog.snapshot = snapshot_of(self.catalog.snapshot.revision + 1, **fields)
        return {id(member) for member, _ in self.taken_out()}


changes = st.fixed_dictionaries(
    {},
    optional={
        "rollout": st.sampled_from(["r1", "r1", "r2"]),
        "phase": st.sampled_from(PHASES),
        "weights": st.tuples(st.sampled_from([0, 100]), st.sampled_from([0, 200])),
        "kill": st.booleans(),
    },
)


@given(st.lists(st.one_of(changes, st.sampled_from([*ARMS, "baseline"]), st.integers(0, 9)), max_size=40))
def test_whoever_is_on_an_arm_is_found_when_it_goes_and_nobody_else(steps: list[Any]) -> None:
    world, here = World(), dict[int, tuple[Member, str]]()
    for step in steps:
        snapshot = world.catalog.snapshot
        if isinstance(step, str):
            member = world.member()
            out = step != "baseline" and out_of_force(snapshot, "tiny", "r1", step)
            assert world.enter(member, step) is not out
            if not out and step != "baseline":
                here[id(member)] = member, step
        elif isinstance(step, int):
            if here:
                member, _ = here.pop(sorted(here)[step % len(here)])
                world.membership.leave(member)
        else:
            gone = world.change(**step)
            now = world.catalog.snapshot
            promoted = step.get("rollout", "r1") == "r1" and step.get("phase") == pb.ROLLOUT_PHASE_PROMOTED
            expected = {key for key, (_, arm) in here.items() if out_of_force(now, "tiny", "r1", arm)}
            assert gone == expected
            here = {} if promoted else {key: held for key, held in here.items() if key not in gone}
        assert len(world.membership) == len(here)
    for member, _ in here.values():
        world.membership.leave(member)
    assert len(world.membership) == 0
    assert not world.membership._migrate


def test_streams_move_as_the_rollout_said_last() -> None:
    for policy, migrate in ((pb.IN_FLIGHT_MIGRATE, True), (pb.IN_FLIGHT_FINISH, False), (0, False)):
        world = World()
        world.catalog.snapshot.rollouts["tiny"].on_rollback = cast(Any, policy)
        member = world.member()
        assert world.enter(member, "b")
        rest = replace(world.catalog.snapshot, revision=2, rollouts={})  # the rollout itself is gone
        world.catalog.snapshot = rest
        assert world.taken_out() == [(member, migrate)]
        assert world.taken_out() == []


def test_a_newer_router_is_believed_until_the_snapshot_is_as_new() -> None:
    world = World()
    member = world.member()
    assert world.enter(member, "b", revision=5, rollout="r2")
    for _ in range(3):
        assert world.change() == set()
    assert world.change() == {id(member)}
    assert not world.enter(member, "b", revision=1, rollout="r2")
