"""What the calls about rollouts would write. Decides; writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from weir.registry.v1 import registry_pb2 as pb

from libs.changes import Change, nothing, put
from libs.clock.stamps import timestamp
from libs.deadlines import to_seconds
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot, slo_of
from libs.rollouts import SHADOW_TENANT, is_live, phase_of
from services.registry.messages import copy, replaced, require
from services.registry.policy import rollouts
from services.registry.policy.faults import Fault, check_text
from services.registry.policy.steering import Phase, Place, place_after

ROUTE = "generate"
"""The route that rollouts are judged by."""
SHADOW_REQUESTS = 600
SHADOW_TOKENS = 200_000
"""Mirrored requests and tokens per minute when the plan says nothing."""
_EXHAUSTED = 1.0


def start_rollout(
    snapshot: RegistrySnapshot, wanted: pb.Rollout, *, rollout_id: str, actor: str, now: float
) -> Change[pb.Rollout]:
    """A rollout that begins to prepare; with a shadow plan also the quota of mirrored requests.

    :param now: Unix seconds.
    :raises WeirError: INVALID_REQUEST with the field at fault; CONFLICT when the mesh cannot carry it out now (`limit`
        says what is in the way) or the alias's last rollout is not at the revision that was read.
    """
    stored = snapshot.rollouts.get(wanted.alias)
    if stored is not None and stored.id == rollout_id:
        # An attempt whose outcome was unclear had succeeded.
        return nothing(stored)
    spec, world = spec_of(wanted), world_of(snapshot)
    require(rollouts.check_rollout(spec, world) or _check_numbers(wanted))
    _require_now(rollouts.check_now(spec, world))
    made = copy(wanted)
    made.id = rollout_id
    made.baseline = snapshot.aliases[wanted.alias].targets[0].model_version
    made.ClearField("state")
    made.state.phase = pb.ROLLOUT_PHASE_PREPARING
    made.state.reason = wanted.reason
    made.state.decided_by = actor
    made.state.started_at.CopyFrom(timestamp(now))
    made.state.entered_at.CopyFrom(timestamp(now))
    change = replaced(f"rollouts/{wanted.alias}", made, stored)
    writes = list(change.writes)
    if wanted.HasField("shadow"):
        if SHADOW_TENANT not in snapshot.tenants:
            writes.append(put(pb.Tenant(id=SHADOW_TENANT, display_name="Mirrored traffic", plan=pb.PLAN_FREE)))
        quota = pb.Limits(
            tenant=SHADOW_TENANT,
            model=wanted.alias,
            requests_per_minute=wanted.shadow.requests_per_minute or SHADOW_REQUESTS,
            tokens_per_minute=wanted.shadow.tokens_per_minute or SHADOW_TOKENS,
        )
        if _quota_of(snapshot, wanted.alias) != quota:
            writes.append(put(quota))
    return Change(change.message, tuple(writes))


def steer_rollout(
    snapshot: RegistrySnapshot, request: pb.SteerRolloutRequest, *, actor: str, now: float
) -> Change[pb.Rollout]:
    """A rollout moved as an operator wants it.

    :raises WeirError: NOT_FOUND; INVALID_REQUEST; CONFLICT when it has ended, is frozen, or workers do not have ready
        what would get traffic.
    """
    require(_check_reason(request.change.reason))
    rollout = _live(snapshot, request.alias)
    made = copy(rollout)
    made.state.reason = request.change.reason
    made.state.decided_by = actor
    match request.steering:
        case pb.STEERING_PAUSE:
            if rollout.state.paused:
                return nothing(rollout)
            made.state.paused = True
        case pb.STEERING_RESUME:
            if not (rollout.state.paused or rollout.state.held):
                return nothing(rollout)
            made.state.paused = made.state.held = False
        case pb.STEERING_ADVANCE:
            return _advance(snapshot, made, request.arm, now)
        case pb.STEERING_PROMOTE:
            return _promote(snapshot, made, request.arm, now)
        case _:
            require(Fault("steering", "steering must be ADVANCE, PROMOTE, PAUSE or RESUME"))
    return _written(made)


def abort_rollout(snapshot: RegistrySnapshot, alias: str, *, reason: str, actor: str, now: float) -> Change[pb.Rollout]:
    """A rollout that has ended without its arms; fine when it was aborted already.

    :raises WeirError: NOT_FOUND; INVALID_REQUEST without a reason; CONFLICT when it ended otherwise.
    """
    require(_check_reason(reason))
    stored = snapshot.rollouts.get(alias)
    if stored is not None and phase_of(stored) == pb.ROLLOUT_PHASE_ABORTED:
        return nothing(stored)
    made = copy(_live(snapshot, alias))
    made.state.reason = reason
    made.state.decided_by = actor
    _end(made, pb.ROLLOUT_PHASE_ABORTED, now)
    return _written(made)


def set_switch(snapshot: RegistrySnapshot, wanted: pb.RolloutSwitch) -> Change[pb.RolloutSwitch]:
    """The kill switch as wanted.

    :raises WeirError: INVALID_REQUEST; CONFLICT when it is not at the revision that was read.
    """
    fault = check_text("switch.reason", wanted.reason, rollouts.MAX_REASON)
    if (wanted.kill or wanted.freeze) and not wanted.reason:
        fault = Fault("switch.reason", "a reason is needed to kill or freeze rollouts")
    require(fault)
    return replaced("switches/rollouts", wanted, snapshot.switches.get("rollouts"))


def require_no_rollout(snapshot: RegistrySnapshot, alias: str) -> None:
    """Refuses a change of an alias whose rollout is under way: it would pull the baseline from under it.

    :raises WeirError: CONFLICT.
    """
    rollout = snapshot.rollouts.get(alias)
    if rollout is not None and is_live(rollout):
        raise WeirError(Reason.CONFLICT, f"a rollout of {alias} is under way; abort it first", limit="rollout")


def spec_of(message: pb.Rollout) -> rollouts.RolloutSpec:
    """What the policy checks of a rollout."""
    shadow, radius = message.shadow, message.blast_radius
    return rollouts.RolloutSpec(
        alias=message.alias,
        arms=[rollouts.ArmSpec(arm.name, arm.model_version, arm.weight) for arm in message.arms],
        steps=[
            rollouts.StepSpec(step.weight, _seconds(step, "min_duration"), _seconds(step, "max_duration"))
            for step in message.steps
        ],
        shadow=rollouts.ShadowSpec(
            share=shadow.share,
            min_duration=_seconds(shadow, "min_duration"),
            max_duration=_seconds(shadow, "max_duration"),
            requests_per_minute=shadow.requests_per_minute,
            tokens_per_minute=shadow.tokens_per_minute,
        )
        if message.HasField("shadow")
        else None,
        radius=rollouts.RadiusSpec(
            max_share=radius.max_share,
            only_tenants=list(radius.only_tenants),
            except_tenants=list(radius.except_tenants),
            max_cost_microusd=radius.max_cost_microusd,
        ),
        gates=[
            rollouts.GateSpec(
                metric=gate.metric,
                tolerance=gate.tolerance,
                on_breach=gate.on_breach,
                lower_is_better=gate.lower_is_better,
                at_least=gate.at_least if gate.HasField("at_least") else None,
            )
            for gate in message.gates
        ],
        alpha=message.alpha,
        capacity_share=message.capacity_share,
        keep_warm=_seconds(message, "keep_warm"),
        prepare_timeout=_seconds(message, "prepare_timeout"),
        reason=message.reason,
        override_reason=message.override_reason,
    )


def world_of(snapshot: RegistrySnapshot) -> rollouts.World:
    """The mesh as the policy looks at it."""
    versions = {
        name: rollouts.VersionFacts(version.pool, version.tier) for name, version in snapshot.model_versions.items()
    }
    switch = snapshot.switches.get("rollouts")
    return rollouts.World(
        aliases={name: [t.model_version for t in alias.targets] for name, alias in snapshot.aliases.items()},
        versions=versions,
        tenants=snapshot.tenants.keys(),
        live={alias for alias, rollout in snapshot.rollouts.items() if is_live(rollout)},
        workers=Counter(worker.pool for worker in snapshot.endpoints_of("worker")),
        objectives={tier for tier in {facts.tier for facts in versions.values()} if _judges(snapshot, tier)},
        killed=switch.reason if switch is not None and switch.kill else "",
        frozen=switch.reason if switch is not None and switch.freeze else "",
        exhausted={tier: used for tier in {f.tier for f in versions.values()} if (used := _exhausted(snapshot, tier))},
    )


def _judges(snapshot: RegistrySnapshot, tier: str) -> bool:
    slo = slo_of(snapshot, ROUTE, tier)
    if slo is None:
        return False
    # Objectives that declare nothing withdraw those before.
    return any(field.name not in ("route", "tier", "revision") for field, _ in slo.ListFields())


def _exhausted(snapshot: RegistrySnapshot, tier: str) -> list[str]:
    slo = slo_of(snapshot, ROUTE, tier)
    budget = snapshot.budgets.get((ROUTE, slo.tier)) if slo is not None else None
    used = budget.objectives if budget is not None else ()
    return [f"{each.objective} {each.consumed:.0%}" for each in used if each.consumed >= _EXHAUSTED]


def _live(snapshot: RegistrySnapshot, alias: str) -> pb.Rollout:
    rollout = snapshot.rollouts.get(alias)
    if rollout is None:
        raise WeirError(Reason.NOT_FOUND, f"no rollout of {alias!r}", limit="alias")
    if not is_live(rollout):
        phase = pb.RolloutPhase.Name(phase_of(rollout)).removeprefix("ROLLOUT_PHASE_")
        raise WeirError(Reason.CONFLICT, f"the rollout of {alias} has ended: {phase}", limit="rollout")
    return rollout


def _advance(snapshot: RegistrySnapshot, made: pb.Rollout, arm: str, now: float) -> Change[pb.Rollout]:
    here = Place(Phase(phase_of(made)), made.state.step)
    place = place_after(here, steps=len(made.steps), shadow=made.HasField("shadow"))
    if place is None:
        raise WeirError(
            Reason.CONFLICT, "an experiment has no next step; promote an arm, or abort it", limit="steering"
        )
    if place.phase is Phase.PROMOTED:
        return _promote(snapshot, made, arm, now)
    _require_fit(snapshot, made, [each.model_version for each in made.arms])
    made.state.phase = place.phase.value
    made.state.step = place.step
    made.state.held = False
    made.state.entered_at.CopyFrom(timestamp(now))
    if place.phase is Phase.CANARY:
        made.state.weights[:] = [made.steps[place.step].weight]
    elif place.phase is Phase.EXPERIMENT:
        made.state.weights[:] = [each.weight for each in made.arms]
    return _written(made)


def _promote(snapshot: RegistrySnapshot, made: pb.Rollout, arm: str, now: float) -> Change[pb.Rollout]:
    names = [each.name for each in made.arms]
    if not arm and len(names) > 1:
        require(Fault("arm", f"say which arm to promote: {', '.join(names)}"))
    if arm and arm not in names:
        require(Fault("arm", f"no arm {arm!r}; there are {', '.join(names)}"))
    version = next(each.model_version for each in made.arms if arm in ("", each.name))
    _require_fit(snapshot, made, [version])
    alias = snapshot.aliases.get(made.alias)
    if alias is None or [target.model_version for target in alias.targets] != [made.baseline]:
        raise WeirError(
            Reason.CONFLICT, f"{made.alias} does not give {made.baseline} any more; abort the rollout", limit="alias"
        )
    _end(made, pb.ROLLOUT_PHASE_PROMOTED, now)
    pointed = pb.Alias(name=made.alias, targets=[pb.AliasTarget(model_version=version, weight=100)])
    return Change(_written(made).message, (put(pointed), put(made)))


def _require_fit(snapshot: RegistrySnapshot, rollout: pb.Rollout, versions: Sequence[str]) -> None:
    """Whoever gets traffic must have it ready, and nothing may be frozen: gates can be overruled, these cannot."""
    world = world_of(snapshot)
    if world.killed:
        raise WeirError(Reason.CONFLICT, f"the kill switch of rollouts is set: {world.killed}", limit="switch.kill")
    if not rollout.override_reason:
        names = (rollout.baseline, *(arm.model_version for arm in rollout.arms))
        tiers = {snapshot.model_versions[name].tier for name in names if name in snapshot.model_versions}
        _require_now(rollouts.check_frozen(tiers, world))
    workers = snapshot.endpoints_of("worker")
    for version in versions:
        if not any(version in worker.model_versions for worker in workers):
            raise WeirError(Reason.CONFLICT, f"no worker has {version} ready", limit="capacity")


def _end(made: pb.Rollout, phase: pb.RolloutPhase, now: float) -> None:
    made.state.phase = phase
    made.state.ClearField("weights")
    made.state.held = made.state.paused = False
    made.state.ended_at.CopyFrom(timestamp(now))


def _written(made: pb.Rollout) -> Change[pb.Rollout]:
    made.ClearField("revision")
    return Change(made, (put(made),))


def _quota_of(snapshot: RegistrySnapshot, alias: str) -> pb.Limits:
    """What mirrored requests of the alias have now, without its revision."""
    quota = copy(snapshot.limits.get((SHADOW_TENANT, alias)) or pb.Limits())
    quota.ClearField("revision")
    return quota


def _check_numbers(message: pb.Rollout) -> Fault | None:
    if message.sticky not in pb.StickyBy.values():
        return Fault("rollout.sticky", "rollout.sticky is not known")
    if message.on_rollback not in pb.InFlight.values():
        return Fault("rollout.on_rollback", "rollout.on_rollback is not known")
    for number, gate in enumerate(message.gates):
        if gate.on_breach not in pb.GateAction.values():
            return Fault(f"rollout.gates[{number}].on_breach", "on_breach is not known")
    return None


def _check_reason(reason: str) -> Fault | None:
    return check_text("change.reason", reason, rollouts.MAX_REASON) if reason else Fault("change.reason", "say why")


def _require_now(fault: Fault | None) -> None:
    if fault is not None:
        raise WeirError(Reason.CONFLICT, fault.message, limit=fault.field)


def _seconds(message: pb.Rollout | pb.RolloutStep | pb.ShadowPlan, field: str) -> float | None:
    return to_seconds(getattr(message, field)) if message.HasField(field) else None  # type: ignore[arg-type]
