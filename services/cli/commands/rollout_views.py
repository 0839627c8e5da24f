"""Rollouts as operators read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from libs.clock.stamps import unix
from libs.deadlines import to_seconds
from libs.resources.forms import plain
from libs.resources.quantities import show_seconds
from services.cli.commands.rollout_plan import show_gate
from services.cli.output import cell, short, table_lines, timestamp

_BASIS = 100
_DECISIONS = 5
_READY = 4
"""LOAD_STATE_READY"""
_UNDECIDED = 1
"""VERDICT_UNDECIDED"""
_ARMS = (
    *("ARM", "VERSION", "WEIGHT", "MEASURED", "REQUESTS", "MIRRORED", "ERRORS", "COMPLETED"),
    *("TTFT P50", "P95", "P99", "ITL P50", "ITL P95", "$/1K TOKENS", "$/REQUEST"),
)
_ARMS_WIDE = ("MIRRORED", "COMPLETED", "P99", "ITL P95", "$/REQUEST")
_ARMS_LEAST = ("$/1K TOKENS", "ITL P50", "P95", "MEASURED", "TTFT P50")


def phase_name(rollout: Any) -> str:
    """ "canary", "rolled back" …"""
    from weir.registry.v1 import registry_pb2 as pb

    name = pb.RolloutPhase.Name(rollout.state.phase or pb.ROLLOUT_PHASE_PREPARING)
    return name.removeprefix("ROLLOUT_PHASE_").replace("_", " ").lower()


def is_over(rollout: Any) -> bool:
    """It has ended."""
    return bool(rollout.state.HasField("ended_at"))


def place(rollout: Any) -> str:
    """Where it stands: "canary, step 2 of 4, 5%, paused"."""
    held = "paused by an operator" if rollout.state.paused else "held" if rollout.state.held else None
    step = show_step(rollout)
    return ", ".join(
        part for part in (phase_name(rollout), step and f"step {step}", show_weights(rollout), held) if part
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


def show_plan(rollout: Any) -> str:
    """What was planned, in a line."""
    shares = [f" {show_share(each.weight)}" if each.weight else "" for each in rollout.arms]
    to = ", ".join(f"{a.model_version} ({a.name}{share})" for a, share in zip(rollout.arms, shares, strict=True))
    shadow = f"shadow {show_share(rollout.shadow.share)}" if rollout.HasField("shadow") else ""
    steps = "steps " + ", ".join(map(_step, rollout.steps)) if rollout.steps else ""
    gates = "gates " + (", ".join(map(show_gate, rollout.gates)) or "by default")
    return "; ".join(part for part in (f"{rollout.alias}: {rollout.baseline} → {to}", shadow, steps, gates) if part)


def _step(step: Any) -> str:
    least = f" for {show_seconds(to_seconds(step.min_duration))}" if step.HasField("min_duration") else ""
    return show_share(step.weight) + least


def status_lines(status: Any, *, wide: bool = False) -> list[str]:
    """A rollout with its evidence: tables."""
    head = [(name, cell(value)) for name, value in _head(status)]
    lines = [f"{name:<14} {value}" for name, value in head]
    metrics = sorted({metric for arm in status.arms for metric in arm.scores})
    arms = [arm_cells(arm, metrics) for arm in status.arms]
    columns, least = (*_ARMS, *map(str.upper, metrics)), (*_ARMS_LEAST, *map(str.upper, metrics))
    lines += ["", *table_lines(columns, arms, wide=wide, extra=_ARMS_WIDE, least=least)]
    decisions = ((short(at, wide=wide), *rest) for at, *rest in map(_decision, status.decisions[:_DECISIONS]))
    for columns, rows, least in (
        (("GATE", "ARM", "SAYS", "DIFFERENCE", "BETWEEN", "SAMPLES"), list(map(_gate, status.gates)), ("SAMPLES",)),
        (("WORKER", "ZONE", "VERSION", "STATE", "DETAIL"), list(map(_worker, status.workers)), ("ZONE", "DETAIL")),
        (("AT (UTC)", "DECISION", "BY", "REVISION", "WHY"), list(decisions), ("REVISION", "BY")),
    ):
        lines += ["", *table_lines(columns, rows, wide=wide, least=least)] if rows else []
    return lines


def _head(status: Any) -> Iterator[tuple[str, object]]:
    rollout, state = status.rollout, status.rollout.state
    yield "rollout", f"{rollout.alias}, {rollout.id}"
    yield "from", rollout.baseline
    yield "to", [f"{arm.model_version} ({arm.name})" for arm in rollout.arms]
    yield "phase", f"{place(rollout)}; since {timestamp(state.entered_at)[:19]}Z"
    yield "last decision", f"{state.reason} ({state.decided_by})" if state.reason else None
    if not is_over(rollout):
        yield "waits for", status.waits_for
    yield "decides", f"{status.leader_instance or 'nobody now'}, by reports of {_count(status.sources, 'gateway')}"


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
        *(f"${value / 1e6:.3g}" if value else None for value in (arm.cost_per_1k_tokens, arm.cost_per_request)),
        *(f"{arm.scores[metric]:.4g}" if metric in arm.scores else None for metric in metrics),
    )


def _gate(gate: Any) -> tuple[str, ...]:
    between = f"{_difference(gate, gate.low)} … {_difference(gate, gate.high)}"
    samples = f"{gate.samples:,} / {gate.baseline_samples:,}"
    difference = _difference(gate, gate.difference)
    return show_gate(gate.gate), gate.arm, show_verdict(gate.verdict), difference, between, samples


def _worker(each: Any) -> tuple[str, ...]:
    from weir.registry.v1 import registry_pb2 as pb

    state = pb.LoadState.Name(each.state.state).removeprefix("LOAD_STATE_").lower()
    return each.worker, each.zone, each.state.model_version, state, each.state.detail


def _decision(each: Any) -> tuple[str, str, str, int, str]:
    return timestamp(each.at)[:19], each.kind.replace("_", " "), each.by, each.revision, each.text


def show_verdict(verdict: int) -> str:
    """A gate's word."""
    from weir.rollout.v1 import rollout_pb2 as pb

    return pb.Verdict.Name(verdict or pb.VERDICT_UNDECIDED).removeprefix("VERDICT_").lower()  # type: ignore[arg-type]


def explanation(status: Any, now: float) -> list[str]:
    """A rollout told in sentences: where it stands and why, what each gate saw, what comes next.

    `now`: Unix seconds."""
    rollout, state = status.rollout, status.rollout.state
    over = is_over(rollout)
    to = ", ".join(f"{arm.model_version} as {arm.name}" for arm in rollout.arms)
    undecided = dict.fromkeys(gate.gate.metric for gate in status.gates if gate.verdict <= _UNDECIDED)
    lines = [] if over else [f"{rollout.alias} waits: {status.waits_for or 'for nothing that is known'}."]
    if undecided:
        lines.append(f"Undecided gates, {len(undecided)} of {len(status.gates)}: {', '.join(undecided)}.")
    lines += [f"A rollout of {rollout.alias} {'tried' if over else 'tries'} {to}, against {rollout.baseline}."]
    if over:
        lines.append(f"It is {phase_name(rollout)} since {timestamp(state.ended_at)[:19]} UTC.")
    else:
        lasted = max(0.0, round(now - unix(state.entered_at), 1))
        lines.append(f"Phase {place(rollout)}, for {show_seconds(lasted)}.")
    if state.reason:
        lines.append(f"Last decision, by {state.decided_by}: {state.reason}.")
    unready = [_worker(each) for each in status.workers if each.state.state != _READY]
    decisions = [
        f"{at}  {kind}, by {by}, revision {revision}: {text}"
        for at, kind, by, revision, text in map(_decision, status.decisions)
    ]
    for heading, told in (
        (
            "What the gates say of this step:",
            [f"{each.arm}, {show_verdict(each.verdict)}: {each.text}" for each in status.gates] or ["nothing yet"],
        ),
        ("Requests of this step:", [_requests(arm, over=over) for arm in status.arms]),
        (
            "Workers that are not ready:",
            [f"{worker} ({zone}): {version} {how} {why}".rstrip() for worker, zone, version, how, why in unready],
        ),
        ("Decisions, newest first:", decisions or ["none yet"]),
    ):
        if told:
            lines += ["", heading, *(f"  {line}" for line in told)]
    heard = _count(status.sources, "gateway")
    return [*lines, "", f"{status.leader_instance or 'No controller'} decides, by what {heard} reported."]


def _requests(arm: Any, *, over: bool) -> str:
    mirrored = f", {arm.mirrored:,} mirrored" if arm.mirrored else ""
    share = f"; {show_share(arm.measured_share)} of all" if arm.requests else ""
    meant = f" (meant: {show_share(arm.weight)})" if arm.requests and not over else ""
    return f"{arm.arm}: {arm.requests:,} of users{mirrored}{share}{meant}"


def watch_parts(status: Any) -> tuple[str, ...]:
    """A rollout for pipes: where it stands, its arms, what gates say, why; empty where there is nothing."""
    rollout = status.rollout
    arms = "; ".join(
        f"{arm.arm} {arm.requests:,} requests, {arm.error_rate:.2%} errors, TTFT p95 {_time(arm.ttft_p95) or '-'}"
        for arm in status.arms
    )
    said = ", ".join(
        f"{gate.gate.metric} {show_verdict(gate.verdict)}" for gate in status.gates if gate.verdict > _UNDECIDED
    )
    why = rollout.state.reason if is_over(rollout) else status.waits_for
    return place(rollout), arms, said, why


def plain_status(status: Any) -> dict[str, Any]:
    """A status as JSON values; an open end of an interval is null."""
    made: dict[str, Any] = finite(plain(status, unset=True))
    return made


def finite(value: Any) -> Any:
    """JSON values without infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _time(value: float) -> str | None:
    if not value:
        return None
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _difference(gate: Any, value: float) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞"
    metric = gate.gate.metric
    return f"{value:+.3g}" if metric.startswith("score:") or metric == "burn_rate" else f"{value:+.1%}"
