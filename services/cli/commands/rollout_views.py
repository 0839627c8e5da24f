"""Rollouts as operators read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from services.cli.commands.rollout_plan import show_gate
from services.cli.output import plain, print_fields, print_table, timestamp
from services.cli.quantities import seconds_of, show_seconds, show_usd

_BASIS = 100
_DECISIONS = 5
_STYLES = {"holds": "green", "breached": "bold red"}


def phase_name(rollout: Any) -> str:
    """ "canary", "rolled back" …"""
    from weir.registry.v1 import registry_pb2 as pb

    name = pb.RolloutPhase.Name(rollout.state.phase or pb.ROLLOUT_PHASE_PREPARING)
    return name.removeprefix("ROLLOUT_PHASE_").replace("_", " ").lower()


def is_over(rollout: Any) -> bool:
    """It has ended."""
    return bool(rollout.state.HasField("ended_at"))


def print_rollouts(rollouts: Iterable[Any]) -> None:
    """One line each."""
    print_table(
        ("ALIAS", "PHASE", "STEP", "WEIGHT", "BASELINE", "TO", "HELD", "SINCE", "WHY"),
        (
            (
                rollout.alias,
                phase_name(rollout),
                show_step(rollout),
                show_weights(rollout),
                rollout.baseline,
                [arm.model_version for arm in rollout.arms],
                "paused" if rollout.state.paused else "held" if rollout.state.held else None,
                timestamp(rollout.state.entered_at)[:19],
                shorten(rollout.state.reason, 80),
            )
            for rollout in rollouts
        ),
        empty="no rollouts",
    )


def show_step(rollout: Any) -> str | None:
    """ "2 of 4" of a canary."""
    return f"{rollout.state.step + 1} of {len(rollout.steps)}" if phase_name(rollout) == "canary" else None


def show_weights(rollout: Any) -> str | None:
    """ "5%", or "b 20%, c 10%" of an experiment."""
    weights = list(rollout.state.weights)
    if len(rollout.arms) == 1 and weights:
        return show_share(weights[0])
    return ", ".join(f"{arm.name} {show_share(w)}" for arm, w in zip(rollout.arms, weights, strict=False)) or None


def show_share(basis_points: float) -> str:
    """Basis points in percent."""
    return f"{basis_points / _BASIS:g}%"


def print_status(status: Any) -> None:
    """A rollout with its evidence."""
    print_fields(_head(status))
    print_arms(status)
    print_gates(status)
    if status.workers:
        print_workers(status)
    print_decisions(status, _DECISIONS)


def _head(status: Any) -> Iterable[tuple[str, object]]:
    rollout = status.rollout
    state = rollout.state
    yield "alias", rollout.alias
    yield "rollout", rollout.id
    yield "from", rollout.baseline
    yield "to", ", ".join(f"{arm.model_version} ({arm.name})" for arm in rollout.arms)
    step = show_step(rollout)
    yield "phase", phase_name(rollout) + (f", step {step}" if step else "") + _held(state)
    yield "weight", show_weights(rollout)
    yield "since", timestamp(state.entered_at)[:19]
    yield "last decision", f"{state.reason} ({state.decided_by})" if state.reason else None
    if not is_over(rollout):
        yield "waits for", status.waits_for
    yield "decides", f"{status.leader_instance or 'nobody now'}; {_count(status.sources, 'gateway')} heard"


def print_arms(status: Any) -> None:
    """What callers of each arm met in this step."""
    metrics = sorted({metric for arm in status.arms for metric in arm.scores})
    print_table(
        (
            *("ARM", "VERSION", "WEIGHT", "MEASURED", "REQUESTS", "MIRRORED", "ERRORS", "COMPLETED"),
            *("TTFT P50", "P95", "P99", "ITL P50", "P95", "$/1K TOKENS", "$/REQUEST"),
            *(metric.upper() for metric in metrics),
        ),
        (arm_cells(arm, metrics) for arm in status.arms),
        empty="no arms",
    )


def arm_cells(arm: Any, metrics: Iterable[str]) -> tuple[object, ...]:
    """An arm's line."""
    known = arm.requests > 0
    return (
        arm.arm,
        arm.model_version,
        show_share(arm.weight),
        show_share(arm.measured_share) if known else None,
        f"{arm.requests:,}",
        f"{arm.mirrored:,}" if arm.mirrored else None,
        f"{arm.error_rate:.2%}" if known else None,
        f"{arm.stream_completion:.2%}" if known else None,
        *(_time(value) for value in (arm.ttft_p50, arm.ttft_p95, arm.ttft_p99, arm.itl_p50, arm.itl_p95)),
        *(_dollars(value) for value in (arm.cost_per_1k_tokens, arm.cost_per_request)),
        *(f"{arm.scores[metric]:.4g}" if metric in arm.scores else None for metric in metrics),
    )


def print_gates(status: Any) -> None:
    """What each gate says of each arm."""
    print_table(
        ("GATE", "ARM", "SAYS", "DIFFERENCE", "BETWEEN", "SAMPLES"),
        (
            (
                show_gate(gate.gate),
                gate.arm,
                show_verdict(gate.verdict),
                _difference(gate, gate.difference),
                f"{_difference(gate, gate.low)} … {_difference(gate, gate.high)}",
                f"{gate.samples:,} / {gate.baseline_samples:,}",
            )
            for gate in status.gates
        ),
        empty="no gate has said anything yet",
    )


def show_verdict(verdict: int) -> str:
    """A gate's word."""
    from weir.rollout.v1 import rollout_pb2 as pb

    return pb.Verdict.Name(verdict or pb.VERDICT_UNDECIDED).removeprefix("VERDICT_").lower()  # type: ignore[arg-type]


def print_workers(status: Any) -> None:
    """How far workers are."""
    from weir.registry.v1 import registry_pb2 as pb

    print_table(
        ("WORKER", "ZONE", "VERSION", "STATE", "DETAIL"),
        (
            (
                each.worker,
                each.zone,
                each.state.model_version,
                pb.LoadState.Name(each.state.state).removeprefix("LOAD_STATE_").lower(),
                each.state.detail,
            )
            for each in status.workers
        ),
        empty="no worker has any of its versions",
    )


def print_decisions(status: Any, most: int) -> None:
    """The last decisions, newest first."""
    print_table(
        ("AT", "DECISION", "BY", "REVISION", "WHY"),
        (
            (timestamp(each.at)[:19], each.kind.replace("_", " "), each.by, each.revision, each.text)
            for each in status.decisions[:most]
        ),
        empty="no decisions yet",
    )


def explanation(status: Any, now: float) -> list[str]:
    """A rollout told in sentences: where it stands and why, what each gate saw, what comes next.

    `now`: Unix seconds."""
    rollout, state = status.rollout, status.rollout.state
    entered = state.entered_at.seconds + state.entered_at.nanos / 1e9
    to = ", ".join(f"{arm.model_version} as {arm.name}" for arm in rollout.arms)
    tries = "tried" if is_over(rollout) else "tries"
    lines = [
        f"A rollout of {rollout.alias} {tries} {to}, against {rollout.baseline}.",
        _where(status, now - entered),
    ]
    if state.reason:
        lines.append(f"Last decision, by {state.decided_by}: {state.reason}.")
    if not is_over(rollout):
        lines.append(f"Now: {status.waits_for or 'nothing to say'}.")
    lines += ["", "What the gates say of this step:"]
    lines += [f"  {show_verdict(gate.verdict):<9}  {gate.arm}: {gate.text}" for gate in status.gates] or [
        "  nothing yet"
    ]
    lines += ["", "Requests of this step:"]
    lines += [
        f"  {arm.arm}: {arm.requests:,} of users"
        + (f", {arm.mirrored:,} mirrored" if arm.mirrored else "")
        + (f"; {show_share(arm.measured_share)} of all" if arm.requests else "")
        + (f" (meant: {show_share(arm.weight)})" if arm.requests and not is_over(rollout) else "")
        for arm in status.arms
    ]
    unready = [each for each in plain(status)["workers"] if each["state"]["state"] != "LOAD_STATE_READY"]
    if unready:
        lines += ["", "Workers that are not ready:"]
        lines += [f"  {_worker(each)}" for each in unready]
    lines += ["", "Decisions, newest first:"]
    lines += [f"  {_decision(each)}" for each in status.decisions] or ["  none yet"]
    heard = _count(status.sources, "gateway")
    lines += ["", f"{status.leader_instance or 'No controller'} decides, by what {heard} reported."]
    return lines


def _decision(each: Any) -> str:
    kind = each.kind.replace("_", " ")
    return f"{timestamp(each.at)[:19]}  {kind}, by {each.by}, revision {each.revision}: {each.text}"


def _where(status: Any, lasted: float) -> str:
    rollout, state = status.rollout, status.rollout.state
    if is_over(rollout):
        return f"It is {phase_name(rollout)} since {timestamp(state.ended_at)[:19]} UTC."
    step = show_step(rollout)
    weights = show_weights(rollout)
    where = f"Phase {phase_name(rollout)}" + (f", step {step}" if step else "") + (f", {weights}" if weights else "")
    return f"{where}, for {show_seconds(max(0.0, round(lasted, 1)))}{_held(state)}."


def _held(state: Any) -> str:
    return ", paused by an operator" if state.paused else ", held" if state.held else ""


def _worker(each: Mapping[str, Any]) -> str:
    model = each["state"]
    state = model["state"].removeprefix("LOAD_STATE_").lower()
    return f"{each['worker']} ({each['zone']}): {model['model_version']} {state} {model['detail']}".rstrip()


def watch_line(status: Any) -> str:
    """A rollout in one line, for pipes."""
    rollout = status.rollout
    step = show_step(rollout)
    arms = "; ".join(
        f"{arm.arm} {arm.requests:,} requests, {arm.error_rate:.2%} errors, TTFT p95 {_time(arm.ttft_p95) or '-'}"
        for arm in status.arms
    )
    said = ", ".join(f"{gate.gate.metric} {show_verdict(gate.verdict)}" for gate in status.gates if gate.verdict > 1)
    where = phase_name(rollout) + (f" {step}" if step else "") + (f" {show_weights(rollout)}" if step else "")
    why = rollout.state.reason if is_over(rollout) else status.waits_for
    return " | ".join(part for part in (where + _held(rollout.state), arms, said, why) if part)


def live_table(status: Any) -> Any:
    """Arms and gates as one renderable for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rollout = status.rollout
    step = show_step(rollout)
    head = Text(f"{rollout.alias}  {rollout.baseline} → {', '.join(arm.model_version for arm in rollout.arms)}  ")
    head.append(phase_name(rollout) + (f" {step}" if step else "") + _held(rollout.state), style="bold")
    arms = Table(box=None, pad_edge=False)
    for column in ("ARM", "WEIGHT", "MEASURED", "REQUESTS", "ERRORS", "TTFT P50", "P95", "ITL P50", "$/1K TOKENS"):
        arms.add_column(column, no_wrap=True)
    for arm in status.arms:
        cells = arm_cells(arm, ())
        shown = (cells[0], cells[2], cells[3], cells[4], cells[6], cells[8], cells[9], cells[11], cells[13])
        arms.add_row(*(Text(str(cell or "-")) for cell in shown))
    gates = Table(box=None, pad_edge=False)
    for column in ("GATE", "SAYS", "WHY"):
        gates.add_column(column)
    for gate in status.gates:
        word = show_verdict(gate.verdict)
        gates.add_row(Text(show_gate(gate.gate)), Text(word, style=_STYLES.get(word, "")), Text(gate.text))
    why = rollout.state.reason if is_over(rollout) else status.waits_for
    last = [f"{timestamp(each.at)[11:19]} {each.kind.replace('_', ' ')}: {each.text}" for each in status.decisions[:3]]
    return Group(head, arms, gates, Text(why, style="italic"), *(Text(line, style="dim") for line in last))


def plain_status(status: Any) -> dict[str, Any]:
    """A status as JSON values; an open end of an interval is null."""
    made: dict[str, Any] = finite(plain(status))
    return made


def finite(value: Any) -> Any:
    """JSON values without infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def shorten(text: str, most: int) -> str:
    """The text, cut with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def show_plan(rollout: Any) -> list[tuple[str, object]]:
    """What was planned, as names and values."""
    steps = ", ".join(
        show_share(step.weight)
        + (f" ≥ {show_seconds(seconds_of(step.min_duration))}" if step.HasField("min_duration") else "")
        for step in rollout.steps
    )
    radius = rollout.blast_radius
    return [
        ("alias", rollout.alias),
        ("from", rollout.baseline),
        (
            "to",
            ", ".join(
                f"{arm.model_version} ({arm.name}{' ' + show_share(arm.weight) if arm.weight else ''})"
                for arm in rollout.arms
            ),
        ),
        ("shadow", show_share(rollout.shadow.share) if rollout.HasField("shadow") else None),
        ("steps", steps),
        ("gates", ", ".join(show_gate(gate) for gate in rollout.gates) or "the defaults"),
        ("most cost", show_usd(radius.max_cost_microusd) if radius.max_cost_microusd else None),
        ("reason", rollout.reason),
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _time(value: float) -> str | None:
    if not value:
        return None
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _dollars(microusd: float) -> str | None:
    return f"${microusd / 1e6:.3g}" if microusd else None


def _difference(gate: Any, value: float) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞"
    metric = gate.gate.metric
    if metric.startswith("score:") or metric == "burn_rate":
        return f"{value:+.3g}"
    return f"{value:+.1%}"
