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
from services.gateway.arms import Arms, TakenOut, out_of_force
from services.gateway.request import Candidate, Request

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
        self.arms = Arms(cast(Any, self.catalog), cast(Any, None))

    def request(self) -> Request:
        return cast(Request, _Request())

    def enter(self, request: Request, arm: str, *, revision: int | None = None, rollout: str = "r1") -> bool:
        at = self.catalog.snapshot.revision if revision is None else revision
        candidate = SimpleNamespace(model="tiny", route=route(arm, at, rollout))
        try:
            self.arms.enter(request, cast(Candidate, candidate))
        except TakenOut:
            return False
        return True

    def change(self, **fields: Any) -> set[int]:
        """The ids of requests that have to go."""
        self.catalog.snapshot = snapshot_of(self.catalog.snapshot.revision + 1, **fields)
        return {id(request) for request, _ in self.arms.taken_out()}


class _Request:
    place: Any = None
    serving: Any = None


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
    world, here = World(), dict[int, tuple[Request, str]]()
    for step in steps:
        snapshot = world.catalog.snapshot
        if isinstance(step, str):
            request = world.request()
            out = step != "baseline" and out_of_force(snapshot, "tiny", "r1", step)
            assert world.enter(request, step) is not out
            if not out and step != "baseline":
                here[id(request)] = request, step
        elif isinstance(step, int):
            if here:
                request, _ = here.pop(sorted(here)[step % len(here)])
                world.arms.leave(request)
        else:
            gone = world.change(**step)
            now = world.catalog.snapshot
            promoted = step.get("rollout", "r1") == "r1" and step.get("phase") == pb.ROLLOUT_PHASE_PROMOTED
            expected = {key for key, (_, arm) in here.items() if out_of_force(now, "tiny", "r1", arm)}
            assert gone == expected
            here = {} if promoted else {key: held for key, held in here.items() if key not in gone}
        assert len(world.arms) == len(here)
    for request, _ in here.values():
        world.arms.leave(request)
    assert len(world.arms) == 0
    assert not world.arms._migrate


def test_streams_move_as_the_rollout_said_last() -> None:
    for policy, migrate in ((pb.IN_FLIGHT_MIGRATE, True), (pb.IN_FLIGHT_FINISH, False), (0, False)):
        world = World()
        world.catalog.snapshot.rollouts["tiny"].on_rollback = cast(Any, policy)
        request = world.request()
        assert world.enter(request, "b")
        rest = replace(world.catalog.snapshot, revision=2, rollouts={})  # the rollout itself is gone
        world.catalog.snapshot = rest
        assert list(world.arms.taken_out()) == [(request, migrate)]
        assert list(world.arms.taken_out()) == []


def test_a_newer_router_is_believed_until_the_snapshot_is_as_new() -> None:
    world = World()
    request = world.request()
    assert world.enter(request, "b", revision=5, rollout="r2")
    for _ in range(3):
        assert world.change() == set()
    assert world.change() == {id(request)}
    assert not world.enter(request, "b", revision=1, rollout="r2")
