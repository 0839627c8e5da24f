"""A controller that dies at any point is followed by one that ends where it would have ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.rollout_traffic import HEALTHY, Requests, canary_plan, ready_workers
from services.rollout.policy import (
    ArmEvidence,
    Decision,
    Evidence,
    Kind,
    Phase,
    ShadowPlan,
    Situation,
    Stage,
    State,
    decide,
    merge,
)

WORKERS = ready_workers("weir-fast@1", "weir-fast@2")
PLAN = canary_plan(1000, 5000, shadow=ShadowPlan(2000))
RATE = 100
STEP = 10.0
CALM = replace(HEALTHY, ttft_spread=0.3)
BEHAVIOURS = {
    "healthy": CALM,
    "failing": replace(CALM, errors=0.3),
    "slow": replace(CALM, ttft=0.3),
    "dear": replace(CALM, price=2.0),
    "confused": replace(CALM, logprob=-3.0),
}
BASELINE = Requests(CALM, 200_000, np.random.default_rng(1))
CANARIES = {name: Requests(each, 200_000, np.random.default_rng(2)) for name, each in BEHAVIOURS.items()}


@dataclass
class World:
    """What outlives a controller: the stored state, and gateways that count."""

    canary: Requests
    state: State = field(default_factory=State)
    counts: dict[Stage, int] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    def serve(self) -> None:
        """The requests of ten seconds."""
        share = sum(self.state.weights)
        requests = int(RATE * STEP)
        self._count("baseline", requests * (10_000 - share) // 10_000)
        self._count("canary", requests * share // 10_000)
        if self.state.phase is Phase.SHADOW:
            self._count("canary", requests // 5, mirrored=True)

    def decide(self, now: float) -> Decision:
        """What a controller that knows nothing else decides."""
        return decide(PLAN, self.state, Situation(now, self.evidence(), WORKERS))

    def write(self, decision: Decision) -> None:
        """One transaction."""
        if decision.changes:
            self.state = decision.state
            self.decisions.append(decision)

    @property
    def way(self) -> list[tuple[Kind, Phase, int]]:
        """What was written."""
        return [(each.kind, each.state.phase, each.state.step) for each in self.decisions]

    def _count(self, arm: str, requests: int, mirrored: bool = False) -> None:
        stage = Stage(self.state.phase, self.state.step, arm, mirrored)
        self.counts[stage] = self.counts.get(stage, 0) + requests

    def evidence(self) -> Evidence:
        """As reported by two gateways, of which one reports nothing but zeroes."""
        reports = [(stage, self._requests(stage).evidence(count)) for stage, count in self.counts.items()]
        return merge([*reports, *((stage, ArmEvidence()) for stage in self.counts)])

    def _requests(self, stage: Stage) -> Requests:
        return BASELINE if stage.arm == "baseline" else self.canary


class Death(StrEnum):
    """Where a controller dies during a look."""

    BEFORE = "it has decided, but not written"
    AFTER = "it has written, and its successor looks at once"
    AWAY = "nobody looks for a while"


def run(behaviour: str, deaths: Mapping[int, Death]) -> World:
    """A whole rollout of 80 looks."""
    world = World(CANARIES[behaviour])
    for look in range(80):
        now = 1000.0 + STEP * look
        death = deaths.get(look)
        if death is not Death.AWAY:
            found = world.decide(now)
            if death is Death.BEFORE:
                found = world.decide(now)
            world.write(found)
        if death is Death.AFTER:
            world.write(world.decide(now))
        world.serve()
    return world


@settings(max_examples=12)
@given(st.sampled_from(sorted(BEHAVIOURS)), st.dictionaries(st.integers(0, 60), st.sampled_from(Death), max_size=25))
def test_whenever_controllers_die_the_way_is_the_same(behaviour: str, deaths: Mapping[int, Death]) -> None:
    undisturbed, disturbed = run(behaviour, {}), run(behaviour, deaths)
    assert disturbed.way == undisturbed.way
    assert undisturbed.state.phase is (Phase.PROMOTED if behaviour == "healthy" else Phase.ROLLED_BACK)


@settings(max_examples=6)
@given(st.sampled_from(sorted(BEHAVIOURS)), st.sets(st.integers(0, 79), max_size=30))
def test_a_successor_that_looks_at_once_writes_the_same_to_the_word(behaviour: str, looks: set[int]) -> None:
    undisturbed, disturbed = run(behaviour, {}), run(behaviour, dict.fromkeys(looks, Death.BEFORE))
    assert disturbed.state == undisturbed.state
    assert [each.text for each in disturbed.decisions] == [each.text for each in undisturbed.decisions]


def test_a_controller_that_comes_late_ends_in_the_same_phase() -> None:
    # A minute without a controller: gateways went on counting, and the next one decides on what they have.
    world = World(CANARIES["failing"], State(Phase.CANARY, 0, (1000,), 1000.0))
    for _ in range(6):
        world.serve()
    found = decide(PLAN, world.state, Situation(1060.0, world.evidence(), WORKERS))
    assert (found.kind, found.state.phase) == (Kind.ROLL_BACK, Phase.ROLLED_BACK)


def test_a_healthy_candidate_passes_every_step() -> None:
    assert run("healthy", {}).way == [
        (Kind.PREPARE, Phase.PREPARING, 0),
        (Kind.ADVANCE, Phase.SHADOW, 0),
        (Kind.ADVANCE, Phase.CANARY, 0),
        (Kind.ADVANCE, Phase.CANARY, 1),
        (Kind.PROMOTE, Phase.PROMOTED, 1),
    ]
