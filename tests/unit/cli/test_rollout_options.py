"""`weir rollout`: what is written on the command line, and what is read from it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb
from weir.rollout.v1 import rollout_pb2

from libs.resources.codec import unpack
from services.cli.app import UsageError
from services.cli.commands import rollout
from services.cli.commands import rollout_views as views
from services.cli.commands.change import read_form
from services.cli.commands.rollout_plan import Said, full_name, parse_gate, parse_share, plan, show_gate
from services.cli.commands.slo import show_left, window_seconds


def planned(base: dict[str, Any] | None = None, *, version: str = "", **more: Any) -> Any:
    """The rollout as the registry gets it."""
    form = base or {"kind": "Rollout", "metadata": {"name": "weir-fast"}}
    return unpack(read_form(plan(form, Said(**more), version), "the rollout"))


def test_a_canary_with_everything() -> None:
    made = planned(
        version="weir-fast@2",
        steps="1, 5%,0.5",
        step_duration="90s",
        step_samples=7,
        shadow="10",
        only_tenant=("acme",),
        max_cost="1.50",
        gate=("ttft<=20%",),
        override="a fix",
        schema_changed=True,
        set_=(
            *("sticky=user", "on_rollback=migrate", "alpha=0.02", "capacity_share=0.25", "keep_warm=5m"),
            *("prepare_timeout=1m", "blast_radius.max_share=2000", "blast_radius.max_tenants=3"),
            *("steps.0.max_duration=2h", "shadow.min_duration=30s", "shadow.min_samples=9"),
        ),
    )
    assert [(arm.name, arm.model_version) for arm in made.arms] == [("canary", "weir-fast@2")]
    assert [step.weight for step in made.steps] == [100, 500, 50]
    assert {(step.min_duration.seconds, step.min_samples) for step in made.steps} == {(90, 7)}
    assert made.steps[0].max_duration.seconds == 7200
    assert (made.shadow.share, made.shadow.min_duration.seconds, made.shadow.min_samples) == (1000, 30, 9)
    assert (made.sticky, made.on_rollback) == (pb.STICKY_BY_USER, pb.IN_FLIGHT_MIGRATE)
    radius = made.blast_radius
    assert (radius.max_share, radius.max_tenants, radius.max_cost_microusd) == (2000, 3, 1_500_000)
    assert list(radius.only_tenants) == ["acme"]
    assert (made.alpha, made.capacity_share, made.override_reason) == (0.02, 0.25, "a fix")
    assert made.schema_changed
    assert (made.keep_warm.seconds, made.prepare_timeout.seconds) == (300, 60)


def test_steps_unless_said_otherwise() -> None:
    assert [step.weight for step in planned(version="m@2").steps] == [100, 500, 2500, 5000]
    assert not planned(version="m@2").HasField("shadow")


def test_an_experiment_has_arms_and_no_steps() -> None:
    made = planned(arm=("b=m@2:20", "c=m@3:0.5%"))
    assert [(arm.name, arm.model_version, arm.weight) for arm in made.arms] == [("b", "m@2", 2000), ("c", "m@3", 50)]
    assert not made.steps


@pytest.mark.parametrize(
    ("bad", "option"),
    [
        ({}, "VERSION"),
        ({"version": "m@2", "arm": ("b=m@2:20",)}, "--arm"),
        ({"arm": ("b=m@2",)}, "--arm"),
        ({"arm": ("b=m@2:20",), "steps": "1"}, "--steps"),
        ({"version": "m@2", "steps": "0"}, "--steps"),
        ({"version": "m@2", "steps": "1,x"}, "--steps"),
        ({"version": "m@2", "steps": "1,100"}, "--steps"),
        ({"version": "m@2", "steps": "0.001"}, "--steps"),
        ({"version": "m@2", "step_duration": "soon"}, "--step-duration"),
        ({"version": "m@2", "shadow": "101"}, "--shadow"),
        ({"version": "m@2", "gate": ("ttft=20%",)}, "--gate"),
        ({"version": "m@2", "max_cost": "-1"}, "--max-cost"),
        (
            {"version": "m@2", "set_": ("sticky=moon",)},
            "the rollout: spec.sticky: must be one of tenant, user, session",
        ),
        ({"version": "m@2", "set_": ("on_rollback=drop",)}, "the rollout: spec.on_rollback: must be one of "),
        ({"version": "m@2", "set_": ("keep_warm=x",)}, "the rollout: spec.keep_warm: must be a number and ms"),
        ({"version": "m@2", "set_": ("stikcy=user",)}, "stikcy"),
        ({"version": "m@2", "set_": ("steps.4.weight=1",)}, "steps.4.weight"),
    ],
)
def test_what_is_wrong_is_named(bad: dict[str, Any], option: str) -> None:
    with pytest.raises(UsageError, match=f"^{option}"):
        planned(**bad)


@pytest.mark.parametrize(
    "text",
    [
        "ttft<=20%",
        "error_rate<=1%,hold",
        "cost_per_1k_tokens<=2.5%,hold,must",
        "burn_rate<=1.5",
        "score:helpful<=0.1,lower",
        "score:shadow_exact>=0.8,must",
    ],
)
def test_gates_are_shown_as_they_are_written(text: str) -> None:
    assert show_gate(pb.Gate(**parse_gate(text))) == text


def test_a_gate_means_what_it_says() -> None:
    gate = pb.Gate(**parse_gate("error_rate<=1%,hold"))
    assert (gate.metric, gate.tolerance, gate.on_breach) == ("error_rate", 0.01, pb.GATE_ACTION_HOLD)
    assert not gate.HasField("at_least")
    assert parse_gate("score:helpful>=0.8")["at_least"] == 0.8


@pytest.mark.parametrize("text", ["", "ttft", "ttft<=", "ttft<=fast", "ttft>=1", "ttft<=1%,perhaps", "TTFT<=1"])
def test_what_is_no_gate(text: str) -> None:
    with pytest.raises(UsageError):
        parse_gate(text)


@pytest.mark.parametrize(("text", "points"), [("5", 500), ("5%", 500), ("0.01", 1), ("100", 10_000)])
def test_shares(text: str, points: int) -> None:
    assert parse_share(text, "--x") == points


def test_a_bare_version_is_of_the_alias_model() -> None:
    assert full_name("2", "weir-fast@1") == "weir-fast@2"
    assert full_name("other@2", "weir-fast@1") == "other@2"


def test_a_file_with_options_over_it() -> None:
    arms = [{"name": "canary", "model_version": "m@2"}]
    base = {
        "kind": "Rollout",
        "metadata": {"name": "weir-fast"},
        "spec": {"arms": arms, "steps": [{"weight": 700}], "reason": "because"},
    }
    made = planned(base, step_duration="5s")
    assert (made.alias, made.reason, made.steps[0].weight) == ("weir-fast", "because", 700)
    assert made.steps[0].min_duration.seconds == 5


def status() -> rollout_pb2.RolloutStatus:
    made = rollout_pb2.RolloutStatus(leader_instance="rollout-0", sources=2, waits_for="canary has 5 of 100 requests")
    rollout = made.rollout
    rollout.CopyFrom(planned(version="weir-fast@2", steps="10,50"))
    rollout.baseline = "weir-fast@1"
    rollout.state.phase = pb.ROLLOUT_PHASE_CANARY
    rollout.state.weights.append(1000)
    rollout.state.reason = "workers are ready"
    rollout.state.decided_by = "controller/rollout-0"
    rollout.state.entered_at.seconds = 1_000
    made.arms.add(arm="baseline", model_version="weir-fast@1", weight=9000, requests=90, ttft_p95=0.2)
    canary = made.arms.add(arm="canary", model_version="weir-fast@2", weight=1000, requests=5, measured_share=526)
    canary.scores["helpful"] = 0.75
    made.gates.add(
        gate=pb.Gate(**parse_gate("ttft<=20%")),
        arm="canary",
        verdict=rollout_pb2.VERDICT_HOLDS,
        difference=0.01,
        low=-float("inf"),
        high=0.1,
        samples=5,
        baseline_samples=90,
        text="TTFT of canary is 1.01 times the baseline's",
    )
    made.workers.add(worker="worker-a", zone="zone-a").state.CopyFrom(
        pb.ModelState(model_version="weir-fast@2", state=pb.LOAD_STATE_FAILED, detail="bad signature")
    )
    decision = made.decisions.add(kind="roll_back", text="too slow", by="controller/rollout-0", revision=7)
    decision.at.seconds = 1_001
    return made


def test_an_explanation_has_every_reason_and_number() -> None:
    text = "\n".join(views.explanation(status(), 1_042.0))
    for part in (
        "weir-fast@2 as canary",
        "against weir-fast@1",
        "step 1 of 2, 10%, for 42 s",
        "workers are ready",
        "canary has 5 of 100 requests",
        "TTFT of canary is 1.01 times",
        "5.26% of all (meant: 10%)",
        "worker-a (zone-a): weir-fast@2 failed bad signature",
        "roll back, by controller/rollout-0, revision 7: too slow",
        "rollout-0 decides, by what 2 gateways reported",
    ):
        assert part in text


def test_what_keeps_a_rollout_and_undecided_gates_come_first() -> None:
    known = status()
    known.gates.add(gate=pb.Gate(**parse_gate("itl<=20%")), arm="canary", verdict=rollout_pb2.VERDICT_UNDECIDED)
    lines = views.explanation(known, 1_042.0)
    assert lines[:2] == ["weir-fast waits: canary has 5 of 100 requests.", "Undecided gates, 1 of 2: itl."]
    known.rollout.state.ended_at.seconds = 1_050
    assert views.explanation(known, 1_060.0)[0] == "Undecided gates, 1 of 2: itl."


def test_a_watch_in_a_pipe_says_what_is_new_and_numbers_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    printer, known = rollout._LinePrinter(lambda: now[0]), status()

    def told() -> str:
        printer(known)
        return capsys.readouterr().out.partition(" ")[2]

    assert told() == (
        "canary, step 1 of 2, 10% | baseline 90 requests, 0.00% errors, TTFT p95 200 ms; canary 5 requests, 0.00% "
        "errors, TTFT p95 - | ttft holds | canary has 5 of 100 requests\n"
    )
    known.waits_for, known.arms[0].requests = "canary has 6 of 100 requests", 1_234
    assert not told()
    known.rollout.state.step = 1
    assert told() == "canary, step 2 of 2, 10%\n"
    known.waits_for = "rollouts are frozen: fire"
    assert told() == "rollouts are frozen: fire\n"
    now[0] += 30.0
    assert told().startswith("baseline 1,234 requests")
    assert not told()


def test_a_live_view_writes_the_lines_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    view, known = rollout._LiveView(), status()
    view(known)
    first = capsys.readouterr().out
    known.waits_for = "canary has 6 of 100 requests"
    view(known)
    second = capsys.readouterr().out
    assert second.count("\033[K") == 1
    assert second.count("\n") == second.count("\033[F") == first.count("\n")
    assert "canary has 6 of 100 requests" in second
    assert len(second) < len(first) / 2


def test_json_has_no_infinities() -> None:
    text = json.dumps(views.plain_status(status()), allow_nan=False)
    assert json.loads(text)["gates"][0]["low"] is None


def test_tables_and_lines() -> None:
    whole = "\n".join(views.status_lines(status(), wide=True))
    for part in ("waits for", "ttft<=20%", "-∞ … +10.0%", "0.75", "bad signature", "too slow", "step 1 of 2, 10%"):
        assert part in whole
    assert max(map(len, views.status_lines(status()))) <= 100
    place, arms, said, why = views.watch_parts(status())
    assert (place, said, why) == ("canary, step 1 of 2, 10%", "ttft holds", "canary has 5 of 100 requests")
    assert arms.startswith("baseline 90 requests")
    shown = views.show_plan(status().rollout)
    assert shown == "weir-fast: weir-fast@1 → weir-fast@2 (canary); steps 10%, 50%; gates by default"


def test_what_is_left_of_a_budget() -> None:
    assert show_left(0.25) == "75.0%"
    assert show_left(2.0) == "none, 2 times used"
    assert sorted(["3d", "5m", "0.3s", "1h"], key=window_seconds) == ["0.3s", "5m", "1h", "3d"]
