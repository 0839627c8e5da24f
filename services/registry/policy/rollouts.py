"""Whether a rollout may begin: what it says must make sense, and the mesh must be able to carry it out and undo it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from services.registry.policy.faults import Fault, check_id, check_text

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
    "cost_per_1k_tokens",
    "cost_per_request",
    "burn_rate",
)
"""What gates may look at, beside "score:NAME"."""
MAX_ARMS = 8
MAX_STEPS = 20
MAX_GATES = 30
MAX_ALPHA = 0.5
MAX_PER_MINUTE = 10**12
MAX_COST = 10**15
"""Micro-dollars: a thousand million dollars."""
MAX_NAMED_TENANTS = 1000
MAX_REASON = 500
LONGEST = 30 * 86400.0
"""Seconds of the longest step, shadow phase or time to keep a version warm."""
_SCORE = re.compile(r"score:[a-z][a-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """Fields as in `weir.registry.v1.RolloutArm`."""

    name: str
    model_version: str
    weight: int


@dataclass(frozen=True, slots=True)
class StepSpec:
    """Fields as in `weir.registry.v1.RolloutStep`; times in seconds, None when unset."""

    weight: int
    min_duration: float | None
    max_duration: float | None


@dataclass(frozen=True, slots=True)
class ShadowSpec:
    """Fields as in `weir.registry.v1.ShadowPlan`; times in seconds, None when unset."""

    share: int
    min_duration: float | None
    max_duration: float | None
    requests_per_minute: int
    tokens_per_minute: int


@dataclass(frozen=True, slots=True)
class RadiusSpec:
    """Fields as in `weir.registry.v1.BlastRadius`."""

    max_share: int
    only_tenants: Sequence[str]
    except_tenants: Sequence[str]
    max_cost_microusd: int


@dataclass(frozen=True, slots=True)
class GateSpec:
    """Fields as in `weir.registry.v1.Gate`."""

    metric: str
    tolerance: float
    on_breach: int
    lower_is_better: bool
    at_least: float | None


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """What is checked of a rollout; fields as in `weir.registry.v1.Rollout`; times in seconds, None when unset."""

    alias: str
    arms: Sequence[ArmSpec]
    steps: Sequence[StepSpec]
    shadow: ShadowSpec | None
    radius: RadiusSpec
    gates: Sequence[GateSpec]
    alpha: float
    capacity_share: float
    keep_warm: float | None
    prepare_timeout: float | None
    reason: str
    override_reason: str

    @property
    def largest_shares(self) -> tuple[int, ...]:
        """The largest share that each arm gets before anything is promoted, basis points."""
        if self.steps:
            return tuple(max(step.weight for step in self.steps) for _ in self.arms)
        return tuple(arm.weight for arm in self.arms)


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What matters of a registered model version."""

    pool: str
    tier: str


@dataclass(frozen=True, slots=True)
class World:
    """The mesh as a rollout would find it."""

    aliases: Mapping[str, Sequence[str]]
    """Versions that each alias gives."""
    versions: Mapping[str, VersionFacts]
    """By "name@version"."""
    tenants: Collection[str]
    live: Collection[str]
    """Aliases whose rollout has not ended."""
    workers: Mapping[str, int]
    """Registered workers by pool."""
    objectives: Collection[str]
    """Tiers with declared objectives for generation."""
    killed: str
    """Why the kill switch is set; empty: it is not."""
    frozen: str
    """Why no rollout may start or go on, by the switch; empty: they may."""
    exhausted: Mapping[str, Sequence[str]]
    """By tier, objectives of generation whose error budget is used up."""


def check_rollout(spec: RolloutSpec, world: World) -> Fault | None:
    """The first fault of what a rollout says, or None."""
    return (
        _check_alias(spec, world)
        or _check_arms(spec, world)
        or (_check_steps(spec) if spec.steps else _check_experiment(spec))
        or _check_shadow(spec.shadow)
        or _check_radius(spec, world)
        or _check_gates(spec.gates)
        or _check_rest(spec)
    )


def check_now(spec: RolloutSpec, world: World) -> Fault | None:
    """Why a rollout that is well said cannot begin in the mesh as it is, or None."""
    if spec.alias in world.live:
        return Fault("rollout.alias", f"a rollout of {spec.alias} is under way; abort it or let it end first")
    if world.killed:
        return Fault("switch.kill", f"the kill switch of rollouts is set: {world.killed}")
    names = [*world.aliases[spec.alias], *(arm.model_version for arm in spec.arms)]
    tiers = {world.versions[name].tier for name in names if name in world.versions}
    for tier in sorted(tiers - set(world.objectives)):
        return Fault("slo", f"no objectives are declared for generation in tier {tier!r}: nothing could judge it")
    return _check_capacity(spec, world) or (None if spec.override_reason else check_frozen(tiers, world))


def check_frozen(tiers: Collection[str], world: World) -> Fault | None:
    """Why rollouts of these tiers may not start or go on without an override, or None."""
    if world.frozen:
        return Fault("switch.freeze", f"rollouts are frozen: {world.frozen}; override_reason overrides")
    for tier in sorted(tiers):
        if used := world.exhausted.get(tier):
            objectives = ", ".join(used)
            return Fault(
                "budget", f"the error budget of tier {tier!r} is used up ({objectives}); override_reason overrides"
            )
    return None


def _check_capacity(spec: RolloutSpec, world: World) -> Fault | None:
    baseline = world.versions.get(world.aliases[spec.alias][0])
    beside = world.workers.get(baseline.pool, 0) if baseline else 0
    for number, (arm, share) in enumerate(zip(spec.arms, spec.largest_shares, strict=True)):
        pool = world.versions[arm.model_version].pool
        field = f"rollout.arms[{number}].model_version"
        have = world.workers.get(pool, 0)
        if not have:
            return Fault(
                field, f"no worker of pool {pool!r} is registered: there is no capacity for {arm.model_version}"
            )
        # In the baseline's own pool arms take at most `capacity_share` of it; in another, its workers must do.
        needed = math.ceil(beside * share / WHOLE)
        if baseline and pool != baseline.pool and have < needed:
            return Fault(
                field,
                f"pool {pool!r} has {have} workers; {share / 100:g} % of what the {beside} of pool {baseline.pool!r} "
                f"serve needs {needed}",
            )
    return None


def _check_alias(spec: RolloutSpec, world: World) -> Fault | None:
    targets = world.aliases.get(spec.alias)
    if targets is None:
        return Fault("rollout.alias", f"no alias {spec.alias!r}")
    if len(targets) != 1:
        # Also one of weight 0: the rollout would lie over an alias that may be something else with a change of weights.
        return Fault(
            "rollout.alias",
            f"{spec.alias} lists {len(targets)} targets ({', '.join(targets)}); point it at the baseline alone first",
        )
    return None


def _check_arms(spec: RolloutSpec, world: World) -> Fault | None:
    if not 1 <= len(spec.arms) <= MAX_ARMS:
        return Fault("rollout.arms", f"a rollout has between 1 and {MAX_ARMS} arms beside the baseline")
    if spec.steps and len(spec.arms) != 1:
        return Fault("rollout.arms", "a canary in steps has one arm; an experiment of several has no steps")
    names: set[str] = set()
    given = set(world.aliases[spec.alias])
    for number, arm in enumerate(spec.arms):
        field = f"rollout.arms[{number}]"
        if fault := check_id(f"{field}.name", arm.name):
            return fault
        if arm.name == BASELINE or arm.name in names:
            return Fault(f"{field}.name", f"an arm's name must be its own, not {arm.name!r}")
        if arm.model_version not in world.versions:
            return Fault(f"{field}.model_version", f"no model version {arm.model_version!r}")
        if arm.model_version in given:
            what = "the baseline" if arm.model_version == world.aliases[spec.alias][0] else "another arm"
            return Fault(f"{field}.model_version", f"{arm.model_version} is {what}'s already")
        names.add(arm.name)
        given.add(arm.model_version)
    return None


def _check_steps(spec: RolloutSpec) -> Fault | None:
    if len(spec.steps) > MAX_STEPS:
        return Fault("rollout.steps", f"at most {MAX_STEPS} steps")
    if spec.arms[0].weight:
        return Fault("rollout.arms[0].weight", "a canary's share is its step's; only an experiment's arms have weights")
    most, last = spec.radius.max_share or WHOLE, 0
    for number, step in enumerate(spec.steps):
        field = f"rollout.steps[{number}]"
        if not 1 <= step.weight < WHOLE:
            # With everybody on the canary nothing is left to compare it with.
            return Fault(
                f"{field}.weight",
                f"a step's weight is between 1 and {WHOLE - 1} basis points; full traffic follows the last by itself",
            )
        if step.weight <= last:
            return Fault(f"{field}.weight", f"steps must grow: {step.weight} follows {last}")
        if step.weight > most:
            return Fault(f"{field}.weight", f"{step.weight} is more than blast_radius.max_share, {most}")
        if fault := _check_times(field, step.min_duration, step.max_duration):
            return fault
        last = step.weight
    return None


def _check_experiment(spec: RolloutSpec) -> Fault | None:
    for number, arm in enumerate(spec.arms):
        if not 1 <= arm.weight < WHOLE:
            field = f"rollout.arms[{number}].weight"
            return Fault(field, f"an experiment's arm has between 1 and {WHOLE - 1} basis points; a canary has steps")
    total, most = sum(arm.weight for arm in spec.arms), spec.radius.max_share or WHOLE
    if total >= WHOLE:
        return Fault(
            "rollout.arms",
            f"the arms' weights sum to {total}; below {WHOLE} basis points the baseline has a share, too",
        )
    if total > most:
        return Fault("rollout.arms", f"the arms' weights sum to {total}, more than blast_radius.max_share, {most}")
    return None


def _check_shadow(shadow: ShadowSpec | None) -> Fault | None:
    if shadow is None:
        return None
    if not 1 <= shadow.share <= WHOLE:
        return Fault("rollout.shadow.share", f"a shadow's share is between 1 and {WHOLE} basis points")
    for field in ("requests_per_minute", "tokens_per_minute"):
        if getattr(shadow, field) > MAX_PER_MINUTE:
            return Fault(f"rollout.shadow.{field}", f"{field} must be at most {MAX_PER_MINUTE}")
    return _check_times("rollout.shadow", shadow.min_duration, shadow.max_duration)


def _check_radius(spec: RolloutSpec, world: World) -> Fault | None:
    radius = spec.radius
    if radius.max_share > WHOLE:
        return Fault("rollout.blast_radius.max_share", f"max_share is at most {WHOLE} basis points")
    if radius.max_cost_microusd > MAX_COST:
        return Fault("rollout.blast_radius.max_cost_microusd", f"max_cost_microusd must be at most {MAX_COST}")
    for name in ("only_tenants", "except_tenants"):
        listed = getattr(radius, name)
        if len(listed) > MAX_NAMED_TENANTS:
            return Fault(f"rollout.blast_radius.{name}", f"at most {MAX_NAMED_TENANTS} tenants")
        for number, tenant in enumerate(listed):
            if tenant not in world.tenants:
                return Fault(f"rollout.blast_radius.{name}[{number}]", f"no tenant {tenant!r}")
    both = sorted(set(radius.only_tenants) & set(radius.except_tenants))
    if both:
        return Fault("rollout.blast_radius.except_tenants", f"{both[0]!r} is among only_tenants, too")
    return None


def _check_gates(gates: Sequence[GateSpec]) -> Fault | None:
    if len(gates) > MAX_GATES:
        return Fault("rollout.gates", f"at most {MAX_GATES} gates")
    seen: set[tuple[str, int]] = set()
    for number, gate in enumerate(gates):
        field = f"rollout.gates[{number}]"
        score = _SCORE.fullmatch(gate.metric) is not None
        if gate.metric not in METRICS and not score:
            known = ", ".join(METRICS)
            return Fault(f"{field}.metric", f"no metric {gate.metric!r}; there are {known}, and score:NAME")
        if not (math.isfinite(gate.tolerance) and gate.tolerance >= 0.0):
            return Fault(f"{field}.tolerance", "a tolerance must be a number, and not negative")
        if not score and (gate.at_least is not None or gate.lower_is_better):
            return Fault(f"{field}.metric", "at_least and lower_is_better are for scores alone")
        if gate.at_least is not None and not math.isfinite(gate.at_least):
            return Fault(f"{field}.at_least", "at_least must be a number")
        if (gate.metric, gate.on_breach or 1) in seen:
            return Fault(f"{field}.metric", f"two gates of {gate.metric!r} do the same")
        seen.add((gate.metric, gate.on_breach or 1))
    return None


def _check_rest(spec: RolloutSpec) -> Fault | None:
    if not spec.reason:
        return Fault("rollout.reason", "a rollout needs a reason")
    if fault := (
        check_text("rollout.reason", spec.reason, MAX_REASON)
        or check_text("rollout.override_reason", spec.override_reason, MAX_REASON)
    ):
        return fault
    # 0 stands for the default, so no comparison may let a NaN through.
    if spec.alpha != 0.0 and not 0.0 < spec.alpha <= MAX_ALPHA:
        return Fault("rollout.alpha", f"alpha must be above 0 and at most {MAX_ALPHA:g}")
    if spec.capacity_share != 0.0 and not 0.0 < spec.capacity_share <= 1.0:
        return Fault("rollout.capacity_share", "capacity_share must be above 0 and at most 1")
    if spec.keep_warm is not None and not 0.0 <= spec.keep_warm <= LONGEST:
        return Fault("rollout.keep_warm", "keep_warm must be between 0 and 30 days")
    if spec.prepare_timeout is not None and not 0.0 < spec.prepare_timeout <= 86400.0:
        return Fault("rollout.prepare_timeout", "prepare_timeout must be positive and at most a day")
    return None


def _check_times(field: str, least: float | None, most: float | None) -> Fault | None:
    for name, seconds in (("min_duration", least), ("max_duration", most)):
        if seconds is not None and not 0.0 <= seconds <= LONGEST:
            return Fault(f"{field}.{name}", f"{name} must be between 0 and 30 days")
    if least is not None and most is not None and most < least:
        return Fault(f"{field}.max_duration", "max_duration must not be shorter than min_duration")
    return None
