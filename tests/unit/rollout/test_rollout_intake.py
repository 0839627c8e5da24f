"""What gateways and scorers tell: sums that no repetition, order or restart can change; budgets over time."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2
from weir.rollout.v1 import rollout_pb2

from libs.clock.stamps import unix
from libs.registry import RegistrySnapshot
from services.rollout import convert
from services.rollout.budgets import ArmBurns, Budgets, exhausted, shares, show_window
from services.rollout.history import action_of
from services.rollout.outcomes import ArmReport, Outcomes, Place, Rollout
from services.rollout.policy.evidence import ArmEvidence, GoodBad, Stage
from services.rollout.policy.phases import GateAction, Kind, Phase
from services.rollout.policy.plan import State
from services.rollout.scores import Score, Scores, fault_of

ONE = Rollout("weir-fast", "r1")
STAGE = Stage(Phase.CANARY, 0, "canary")
DAY = 86400.0


def report(requests: int, *, rollout: Rollout = ONE, stage: Stage = STAGE, tier: str = "fast") -> ArmReport:
    return ArmReport(rollout, Place(stage, "generate", tier), ArmEvidence(requests=requests))


def outcomes(**more: int) -> Outcomes:
    return Outcomes(max_sources=more.get("max_sources", 100), max_arms=more.get("max_arms", 100))


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2", "3"]), st.integers(0, 50)), max_size=60)
)
def test_sums_are_of_the_last_count_of_every_incarnation(frames: list[tuple[str, str, int]]) -> None:
    table = outcomes()
    most: dict[tuple[str, str], int] = {}
    for number, (source, incarnation, requests) in enumerate(frames):
        for _ in range(2):
            table.take(source, incarnation, [report(requests)], float(number))
        most[source, incarnation] = max(requests, most.get((source, incarnation), 0))
    evidence = table.evidence(ONE)
    assert (evidence[STAGE].requests if STAGE in evidence else 0) == sum(most.values())


def test_only_news_is_a_change() -> None:
    table = outcomes()
    assert table.take("a", "1", [report(5)], 0.0) == {ONE}
    assert table.take("a", "1", [report(5)], 1.0) == set()
    assert table.take("a", "1", [report(4)], 2.0) == set()
    assert table.take("a", "1", [report(6)], 3.0) == {ONE}


def test_tiers_of_one_stage_add() -> None:
    table = outcomes()
    table.take("a", "1", [report(5), report(7, tier="quality")], 0.0)
    assert table.evidence(ONE)[STAGE].requests == 12
    assert table.places(ONE) == {("generate", "fast"), ("generate", "quality")}


def test_the_table_is_bounded() -> None:
    table = outcomes(max_sources=2, max_arms=1)
    table.take("a", "1", [report(1), report(1, stage=Stage(Phase.CANARY, 1, "canary"))], 0.0)
    assert table.ignored == 1
    table.take("b", "1", [report(10)], 1.0)
    table.take("c", "1", [report(100)], 2.0)
    assert table.evidence(ONE)[STAGE].requests == 110
    assert table.heard(0.0) == {"b", "c"}


def test_rollouts_that_are_no_more_are_forgotten_but_not_those_ahead_of_us() -> None:
    table = outcomes()
    new = Rollout("weir-fast", "r2")
    table.take("a", "1", [report(5)], 0.0)
    table.take("a", "1", [report(7, rollout=new)], 100.0)
    table.keep({"weir-fast": "r0"}, 120.0)
    assert table.rollouts == {new}
    assert not table.evidence(ONE)
    table.keep({"weir-fast": "r2"}, 1000.0)
    assert table.evidence(new)[STAGE].requests == 7
    table.keep({}, 1001.0)
    table.keep({}, 2000.0)
    assert table.rollouts == set()
    assert table.heard(0.0) == set()


@pytest.mark.parametrize(
    "bad",
    [
        {"errors": 11},
        {"streams": 1, "completed": 2},
        {"ttft": rollout_pb2.Distribution(bins=[1, 2], counts=[1])},
        {"itl": rollout_pb2.Distribution(bins=[2, 1], counts=[1, 1])},
        {"ttft": rollout_pb2.Distribution(bins=[1], counts=[1], sum_log=float("nan"))},
        {"cost": rollout_pb2.CostMoments(cost=float("inf"))},
        {"scores": {"x": rollout_pb2.Moments(sum=float("nan"))}},
        {"arm": ""},
        {"rollout_id": ""},
    ],
    ids=str,
)
def test_counts_that_cannot_be_are_left_out(bad: dict[str, object]) -> None:
    fields: dict[str, object] = {"alias": "weir-fast", "rollout_id": "r1", "arm": "canary", "requests": 10, "phase": 3}
    good = rollout_pb2.ArmOutcomes(**fields)  # type: ignore[arg-type]
    wrong = rollout_pb2.ArmOutcomes(**(fields | bad))  # type: ignore[arg-type]
    assert [each.evidence.requests for each in convert.arm_reports([wrong, good])] == [10]


def score(number: int, value: float = 1.0, **more: str) -> Score:
    return Score(str(number), ONE, more.get("arm", "canary"), more.get("metric", "helpful"), value)


def test_a_score_counts_once_per_metric_and_arm() -> None:
    scores = Scores(memory=100)
    taken = scores.take([score(1), score(1), score(1, metric="kind"), score(1, arm="baseline")])
    assert (taken.accepted, taken.repeated, taken.rollouts) == (3, 1, {ONE})
    assert scores.of(ONE)["canary"]["helpful"].count == 1
    scores.keep({})
    assert scores.of(ONE) == {}
    assert scores.take([score(1)]).accepted == 1


def test_ids_are_remembered_up_to_a_bound() -> None:
    scores = Scores(memory=2)
    scores.take([score(number) for number in range(3)])
    assert scores.take([score(2)]).repeated == 1
    assert scores.take([score(0)]).accepted == 1


@pytest.mark.parametrize("bad", [score(1, float("nan")), score(1, float("inf")), score(1, metric="")])
def test_scores_that_are_none(bad: Score) -> None:
    assert fault_of(bad)
    assert not fault_of(score(1))


def snapshot(availability: float = 0.9) -> RegistrySnapshot:
    slo = registry_pb2.Slo(route="generate", tier="*", availability=availability)
    return RegistrySnapshot(revision=1, slos={("generate", "*"): slo})


def told(good: int, bad: int, tier: str = "fast") -> list[rollout_pb2.ObjectiveOutcomes]:
    made = rollout_pb2.ObjectiveOutcomes(route="generate", tier=tier)
    made.objectives["availability"].good = good
    made.objectives["availability"].bad = bad
    return [made]


@pytest.mark.parametrize(
    ("count", "weights", "parts"),
    [
        (10, {"fast": 900, "quality": 100}, {"fast": 9, "quality": 1}),
        (3, {"fast": 500, "quality": 499}, {"fast": 2, "quality": 1}),
        (1, {"quality": 1, "fast": 9}, {"fast": 1, "quality": 0}),
        (3, {"a": 0, "b": 0}, {"a": 2, "b": 1}),
        (0, {"fast": 5}, {"fast": 0}),
        (7, {}, {}),
    ],
)
def test_what_is_shared_out_is_shared_out_whole(count: int, weights: dict[str, int], parts: dict[str, int]) -> None:
    assert shares(count, weights) == parts


def test_what_the_edge_lost_counts_against_the_routes_tiers_by_their_traffic() -> None:
    budgets = Budgets(scale=1.0, began=DAY)
    for tier, good in (("fast", 900), ("quality", 100)):
        budgets.take(f"gateway {tier}", told(good, 0, tier), DAY + 1, started=DAY)
    budgets.take("controlplane", [], DAY + 1)
    budgets.take("controlplane", told(0, 100, "*"), DAY + 2)
    found = budgets.status(snapshot(), DAY + 2)
    assert {tier: (each.objectives[0].good, each.objectives[0].bad) for (_, tier), each in found.items()} == {
        "fast": (900, 90),
        "quality": (100, 10),
    }
    # It is told in whole numbers that grow, as gateways tell theirs.
    budgets.take("controlplane", told(0, 101, "*"), DAY + 3)
    assert budgets.status(snapshot(), DAY + 3)["generate", "fast"].objectives[0].bad == 91


def test_what_a_gateway_did_before_we_listened_is_not_now() -> None:
    budgets = Budgets(scale=1.0)
    budgets.take("a 1", told(10_000, 9_000), DAY)
    assert budgets.status(snapshot(), DAY) == {}
    budgets.take("a 1", told(10_090, 9_010), DAY + 1)
    (found,) = budgets.status(snapshot(), DAY + 1)["generate", "fast"].objectives
    assert (found.good, found.bad) == (90, 10)


@pytest.mark.parametrize(
    ("started", "counts"),
    [
        (DAY + 299, True),
        (DAY, False),  # five minutes ago and more
        (DAY - 3600, False),
        (DAY + 301, False),  # no clock of the mesh says so
    ],
)
def test_f8_the_first_report_of_a_gateway_that_has_just_begun_counts(started: float, counts: bool) -> None:
    budgets = Budgets(scale=1.0, began=DAY - 100)
    budgets.take("a 1", told(90, 10), DAY + 300.5, started=started)
    found = budgets.status(snapshot(), DAY + 301)
    assert [(each.good, each.bad) for status in found.values() for each in status.objectives] == [(90, 10)] * counts
    budgets.take("a 1", told(91, 10), DAY + 302, started=started)
    (again,) = budgets.status(snapshot(), DAY + 302)["generate", "fast"].objectives
    assert (again.good, again.bad) == ((91, 10) if counts else (1, 0))


def test_f8_a_gateway_that_began_before_we_did_may_have_been_counted_by_others() -> None:
    budgets = Budgets(scale=1.0, began=DAY)
    budgets.take("a 1", told(90, 10), DAY + 1, started=DAY - 1)
    assert budgets.status(snapshot(), DAY + 1) == {}


def test_what_a_gateway_does_after_its_empty_first_report_counts() -> None:
    budgets = Budgets(scale=1.0)
    budgets.take("a 1", [], DAY)
    for _ in range(2):
        budgets.take("a 1", told(50, 50), DAY + 1)
    status = budgets.status(snapshot(), DAY + 1)["generate", "fast"]
    (found,) = status.objectives
    assert (found.good, found.bad, found.alert) == (50, 50, "")
    assert found.burn_rates["5m"] == pytest.approx(5.0)
    assert not exhausted([status])


def test_a_used_up_budget_and_an_alert_and_their_restoration() -> None:
    scale = 1e-4  # thirty days are 259 s
    budgets = Budgets(scale=scale)
    budgets.take("a 1", [], DAY)
    for second in range(60):
        budgets.take("a 1", told(0, 100 * (second + 1)), DAY + second)
    now = DAY + 59
    known = snapshot(0.99)
    status = budgets.status(known, now)["generate", "fast"]
    assert exhausted([status]) == ("generate/fast availability",)
    assert status.objectives[0].alert == "page"
    stored = registry_pb2.ErrorBudget(route="generate", tier="fast", windows=budgets.packed(("generate", "fast")))
    heir = Budgets(scale=scale)
    heir.restore({("generate", "fast"): stored})
    assert heir.status(known, now)["generate", "fast"] == status
    large, deep = zlib.decompress(stored.windows) + b" " * (1 << 20), b"[" * 200_000
    for unreadable in (b"", b"x", stored.windows[:-3], zlib.compress(large), zlib.compress(deep)):
        stranger = Budgets(scale=scale)
        stranger.restore({("generate", "fast"): registry_pb2.ErrorBudget(windows=unreadable)})
        assert stranger.status(known, now) == {}
    other_scale = Budgets(scale=1.0)
    other_scale.restore({("generate", "fast"): stored})
    assert other_scale.status(known, now) == {}


def test_an_arm_burns_by_what_users_met() -> None:
    burns = ArmBurns(scale=0.05)
    mirrored = Stage(Phase.SHADOW, 0, "canary", mirrored=True)
    for second in range(30):
        events = {"availability": GoodBad(second, 9 * second)}
        burns.take({STAGE: ArmEvidence(objectives=events)}, DAY + second)
        burns.take({STAGE: ArmEvidence(objectives=events)}, DAY + second)
        burns.take({mirrored: ArmEvidence(objectives=events)}, DAY + second)
    ((arm, (found,)),) = burns.of({"availability": 0.99, "ttft_p95": 0.95}, DAY + 30).items()
    assert (arm, found.objective, found.alerting) == ("canary", "availability", True)
    assert found.rate == pytest.approx(90.0)
    assert found.threshold in (14.4, 6)


@pytest.mark.parametrize(("seconds", "text"), [(300, "5m"), (3600, "1h"), (259200, "3d"), (0.3, "0.3s")])
def test_windows_have_names(seconds: float, text: str) -> None:
    assert show_window(seconds) == text


def test_kinds_become_actions() -> None:
    assert action_of(Kind.ROLL_BACK.value) == "rollout.RollBack"
    assert action_of(Kind.PROMOTE.value) == "rollout.Promote"


def test_a_rollout_is_read_with_its_defaults_and_written_back() -> None:
    message = registry_pb2.Rollout(alias="a", id="r", baseline="m@1")
    message.arms.add(name="canary", model_version="m@2")
    message.steps.add(weight=100)
    message.gates.add(metric="ttft", tolerance=0.1)
    versions = {"m@1": registry_pb2.ModelVersion(pool="p"), "m@2": registry_pb2.ModelVersion(pool="q")}
    plan = convert.plan(message, RegistrySnapshot(revision=1, model_versions=versions))
    assert (plan.baseline_pool, plan.arms[0].pool, plan.shadow, plan.alpha) == ("p", "q", None, 0.01)
    assert (plan.steps[0].min_duration, plan.steps[0].max_duration, plan.steps[0].min_samples) == (60.0, 3600.0, 100)
    assert (plan.gates[0].on_breach, plan.gates[0].at_least) == (GateAction.ROLL_BACK, None)
    assert not plan.predicts
    versions["m@1"].prediction.max_rows = 1
    assert convert.plan(message, RegistrySnapshot(revision=2, model_versions=versions)).predicts
    assert convert.state(message) == State()
    state = State(Phase.CANARY, 1, (100,), 5.0, held=True, cost=7)
    stored = convert.with_state(message, state, reason="why", by="me", now=9.0)
    assert convert.state(stored) == state
    assert (stored.state.reason, stored.state.decided_by) == ("why", "me")
    assert unix(stored.state.started_at) == 9.0
    assert not stored.state.HasField("ended_at")
    over = convert.with_state(stored, State(Phase.PROMOTED, entered_at=10.0), reason="", by="", now=10.0)
    assert over.state.HasField("ended_at")
    assert unix(over.state.started_at) == 9.0
