"""What rollouts may say. Whether one can begin now is the registry's to decide (services/registry/readiness.py)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.bounds import (
    DAY,
    MAX_MICROUSD,
    MAX_PER_MINUTE,
    MAX_REASON,
    UP_TO_A_DAY,
    Span,
    check_count,
    check_duration,
    check_enum,
    check_not_negative,
    check_range,
    check_reason,
    check_required,
    seconds_of,
    shown,
)
from libs.resources.checks.faults import Fault, check_id, check_text

if TYPE_CHECKING:
    from libs.resources.snapshot import RegistrySnapshot

BASELINE = "baseline"
"""The name of the alias's own arm; no other may have it."""
WHOLE = 10_000
"""All traffic, in basis points."""
METRICS = (
    "error_rate",
    "stream_completion",
    "ttft",
    "ttft_p95",
    "ttft_p99",
    "itl",
    "itl_p95",
    "itl_p99",
    "latency",
    "latency_p95",
    "latency_p99",
    "cost_per_1k_tokens",
    "cost_per_1k_rows",
    "cost_per_request",
    "burn_rate",
)
"""What gates may look at, beside "score:NAME"."""
MAX_ARMS = 8
MAX_STEPS = 20
MAX_GATES = 30
MAX_ALPHA = 0.5
MAX_NAMED_TENANTS = 1000
_LONG = Span(0.0, 30 * DAY, "between 0 and 30 days")
_SCORE = re.compile(r"score:[a-z][a-z0-9_.-]{0,62}")


def check_rollout(message: pb.Rollout, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of what a rollout says; one that has begun has a `baseline`, one that has ended `state.ended_at`."""
    yield from _check_alias(message, snapshot)
    yield from _check_arms(message, snapshot)
    yield from _check_steps(message) if message.steps else _check_experiment(message)
    if message.HasField("shadow"):
        yield from _check_shadow(message.shadow)
    yield from _check_radius(message.blast_radius)
    yield from _check_gates(message)
    yield from check_enum("spec.sticky", message)
    yield from check_enum("spec.on_rollback", message)
    # 0 stands for the default of both.
    yield from check_range("spec.alpha", message, 0, MAX_ALPHA)
    yield from check_range("spec.capacity_share", message, 0, 1)
    yield from check_duration("spec.keep_warm", message, _LONG)
    yield from check_duration("spec.prepare_timeout", message, UP_TO_A_DAY)
    yield from check_reason("spec.reason", message.reason)
    yield from check_text("spec.override_reason", message.override_reason, MAX_REASON)
    yield from check_text("spec.few_keys_reason", message.few_keys_reason, MAX_REASON)


def _targets(message: pb.Rollout, snapshot: RegistrySnapshot) -> list[str]:
    """What the alias gives, as far as it matters: once the rollout has ended the alias may give what it wants."""
    alias = snapshot.aliases.get(message.alias)
    if alias is None or message.state.HasField("ended_at"):
        return []
    return [target.model_version for target in alias.targets]


def _check_alias(message: pb.Rollout, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    targets = _targets(message, snapshot)
    if len(targets) > 1:
        # Also one of weight 0: the rollout would lie over an alias that may be something else with a change of weights.
        yield Fault("metadata.name", f"the alias has {len(targets)} targets; point it at the baseline alone first")


def _check_arms(message: pb.Rollout, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    if not 1 <= len(message.arms) <= MAX_ARMS:
        yield Fault("spec.arms", f"a rollout has between 1 and {MAX_ARMS} arms beside the baseline")
    if message.steps and len(message.arms) > 1:
        yield Fault("spec.arms", "a canary in steps has one arm; an experiment of several has no steps")
    baseline = message.baseline or next(iter(_targets(message, snapshot)), "")
    names, given = {BASELINE}, {baseline} - {""}
    for number, arm in enumerate(message.arms[:MAX_ARMS]):
        path = f"spec.arms[{number}]"
        yield from check_id(f"{path}.name", arm.name)
        yield from check_required(f"{path}.model_version", arm.model_version)
        if arm.name in names:
            yield Fault(f"{path}.name", f"an arm's name must be its own, not {shown(arm.name)}")
        if arm.model_version in given:
            owner = "the baseline" if arm.model_version == baseline else "another arm"
            yield Fault(f"{path}.model_version", f"{shown(arm.model_version)} is {owner}'s already")
        names.add(arm.name)
        given.add(arm.model_version)


def _most(message: pb.Rollout) -> int:
    """The largest share of traffic that arms may have, basis points."""
    return message.blast_radius.max_share or WHOLE


def _check_steps(message: pb.Rollout) -> Iterator[Fault]:
    yield from check_count("spec.steps", message.steps, MAX_STEPS)
    for number, arm in enumerate(message.arms[:MAX_ARMS]):
        if arm.weight:
            field = f"spec.arms[{number}].weight"
            yield Fault(field, "a canary's share is its step's; only an experiment's arms have weights")
    last, most = 0, _most(message)
    for number, step in enumerate(message.steps[:MAX_STEPS]):
        path = f"spec.steps[{number}]"
        if not 1 <= step.weight < WHOLE:
            # With everybody on the canary nothing is left to compare it with; full traffic follows the last by itself.
            yield Fault(f"{path}.weight", f"must be between 1 and {WHOLE - 1} basis points")
        if step.weight <= last:
            yield Fault(f"{path}.weight", f"steps must grow: {step.weight} follows {last}")
        if step.weight > most:
            yield Fault(f"{path}.weight", f"{step.weight} is more than blast_radius.max_share, {most}")
        yield from _check_times(path, step)
        last = step.weight


def _check_experiment(message: pb.Rollout) -> Iterator[Fault]:
    for number, arm in enumerate(message.arms[:MAX_ARMS]):
        if not 1 <= arm.weight < WHOLE:
            field = f"spec.arms[{number}].weight"
            yield Fault(field, f"an experiment's arm has between 1 and {WHOLE - 1} basis points; a canary has steps")
    total, most = sum(arm.weight for arm in message.arms), _most(message)
    if total >= WHOLE:
        yield Fault("spec.arms", f"the arms' weights sum to {total}; below {WHOLE} the baseline has a share, too")
    elif total > most:
        yield Fault("spec.arms", f"the arms' weights sum to {total}, more than blast_radius.max_share, {most}")


def _check_shadow(shadow: pb.ShadowPlan) -> Iterator[Fault]:
    path = "spec.shadow"
    yield from check_range(f"{path}.share", shadow, 1, WHOLE)
    yield from check_range(f"{path}.requests_per_minute", shadow, 0, MAX_PER_MINUTE)
    yield from check_range(f"{path}.tokens_per_minute", shadow, 0, MAX_PER_MINUTE)
    yield from check_range(f"{path}.rows_per_minute", shadow, 0, MAX_PER_MINUTE)
    yield from _check_times(path, shadow)


def _check_radius(radius: pb.BlastRadius) -> Iterator[Fault]:
    path = "spec.blast_radius"
    yield from check_range(f"{path}.max_share", radius, 0, WHOLE)
    yield from check_range(f"{path}.max_cost_microusd", radius, 0, MAX_MICROUSD)
    for name in ("only_tenants", "except_tenants"):
        listed = getattr(radius, name)
        yield from check_count(f"{path}.{name}", listed, MAX_NAMED_TENANTS)
        for number, tenant in enumerate(listed[:MAX_NAMED_TENANTS]):
            yield from check_required(f"{path}.{name}[{number}]", tenant)
    if both := set(radius.only_tenants) & set(radius.except_tenants):
        yield Fault(f"{path}.except_tenants", f"{shown(min(both))} is among only_tenants, too")


def _check_gates(message: pb.Rollout) -> Iterator[Fault]:
    yield from check_count("spec.gates", message.gates, MAX_GATES)
    seen: set[tuple[str, int]] = set()
    for number, gate in enumerate(message.gates[:MAX_GATES]):
        path = f"spec.gates[{number}]"
        yield from _check_gate(path, gate)
        does = (gate.metric, gate.on_breach or pb.GATE_ACTION_ROLL_BACK)
        if does in seen:
            yield Fault(f"{path}.metric", f"two gates of {shown(gate.metric)} do the same")
        seen.add(does)


def _check_gate(path: str, gate: pb.Gate) -> Iterator[Fault]:
    score = _SCORE.fullmatch(gate.metric) is not None
    if gate.metric not in METRICS and not score:
        known = ", ".join(METRICS)
        yield Fault(f"{path}.metric", f"no metric {shown(gate.metric)}; there are {known}, and score:NAME")
    elif not score and (gate.HasField("at_least") or gate.lower_is_better):
        yield Fault(f"{path}.metric", "at_least and lower_is_better are for scores alone")
    yield from check_not_negative(f"{path}.tolerance", gate)
    yield from check_enum(f"{path}.on_breach", gate)
    if not math.isfinite(gate.at_least):
        yield Fault(f"{path}.at_least", "must be a finite number")


def _check_times(path: str, part: pb.RolloutStep | pb.ShadowPlan) -> Iterator[Fault]:
    yield from check_duration(f"{path}.min_duration", part, _LONG)
    yield from check_duration(f"{path}.max_duration", part, _LONG)
    least, most = seconds_of(part, "min_duration"), seconds_of(part, "max_duration")
    if least is not None and most is not None and most < least:
        yield Fault(f"{path}.max_duration", "must not be shorter than min_duration")


def check_switch(message: pb.RolloutSwitch, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of the kill switch: to kill or freeze rollouts needs a reason."""
    if message.kill or message.freeze:
        yield from check_reason("spec.reason", message.reason)
    else:
        yield from check_text("spec.reason", message.reason, MAX_REASON)
