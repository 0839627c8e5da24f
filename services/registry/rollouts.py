"""What the calls about rollouts would write. Decides; writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.changes import Change, nothing, put
from libs.clock.stamps import timestamp
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot, runners_of
from libs.resources.checks.faults import Fault
from libs.rollouts import SHADOW_TENANT, is_live, phase_of
from services.registry.policy.steering import Phase, Place, place_after
from services.registry.readiness import cannot_begin, frozen, killed, tiers_of

SHADOW_REQUESTS = 600
SHADOW_TOKENS = 200_000
SHADOW_ROWS = 200_000
"""Mirrored requests and tokens per minute when the plan says nothing."""


def begun(
    snapshot: RegistrySnapshot, wanted: pb.Rollout, *, rollout_id: str, actor: str, now: float
) -> tuple[pb.Rollout, list[Message]]:
    """The rollout as it begins to prepare, and with a shadow plan the quota of mirrored requests.

    :param now: Unix seconds.
    :raises WeirError: CONFLICT while the alias's last one goes on.
    """
    require_no_rollout(snapshot, wanted.alias)
    made = pb.Rollout()
    made.CopyFrom(wanted)
    alias = snapshot.aliases.get(wanted.alias)
    made.id = rollout_id
    # Without the alias, or a target, it is refused for that.
    made.baseline = alias.targets[0].model_version if alias is not None and alias.targets else ""
    made.ClearField("state")
    made.state.phase = pb.ROLLOUT_PHASE_PREPARING
    made.state.reason = wanted.reason
    made.state.decided_by = actor
    made.state.started_at.CopyFrom(timestamp(now))
    made.state.entered_at.CopyFrom(timestamp(now))
    return made, _shadow(snapshot, wanted)


def require_ready(rollout: pb.Rollout, snapshot: RegistrySnapshot) -> None:
    """Refuses a rollout that the mesh cannot carry out now.

    :raises WeirError: CONFLICT; `limit` says what is in the way.
    """
    _require_now(cannot_begin(rollout, snapshot))


def steered(
    snapshot: RegistrySnapshot, request: pb.SteerRolloutRequest, *, rollout_id: str, actor: str, now: float
) -> Change[pb.Rollout]:
    """A rollout moved as an operator wants it.

    :raises WeirError: NOT_FOUND; INVALID_REQUEST; CONFLICT when it has ended (or has not, for RESTART), is frozen, has
        cost what it may, or workers do not have ready what would get traffic.
    """
    if not request.change.reason:
        _require(Fault("change.reason", "say why"))
    if request.steering == pb.STEERING_RESTART:
        return _restart(snapshot, request, rollout_id=rollout_id, actor=actor, now=now)
    stored = snapshot.rollouts.get(request.alias)
    ending = request.steering == pb.STEERING_ABORT
    if ending and stored is not None and phase_of(stored) == pb.ROLLOUT_PHASE_ABORTED:
        return nothing(stored)
    rollout = _live(snapshot, request.alias)
    made = pb.Rollout()
    made.CopyFrom(rollout)
    made.state.reason = request.change.reason
    made.state.decided_by = actor
    match request.steering:
        case pb.STEERING_ABORT:
            _end(made, pb.ROLLOUT_PHASE_ABORTED, now)
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
            _require(Fault("steering", "steering must be ADVANCE, PROMOTE, PAUSE, RESUME, ABORT or RESTART"))
    return _written(made)


def require_no_rollout(snapshot: RegistrySnapshot, alias: str) -> None:
    """Refuses a change of an alias whose rollout is under way: it would pull the baseline from under it.

    :raises WeirError: CONFLICT.
    """
    rollout = snapshot.rollouts.get(alias)
    if rollout is not None and is_live(rollout):
        raise WeirError(
            Reason.CONFLICT, f"a rollout of {alias} is under way; `weir rollout abort {alias}` ends it", limit="rollout"
        )


def _live(snapshot: RegistrySnapshot, alias: str) -> pb.Rollout:
    rollout = snapshot.rollouts.get(alias)
    if rollout is None:
        raise WeirError(Reason.NOT_FOUND, f"no rollout of {alias!r}", limit="alias")
    if not is_live(rollout):
        phase = pb.RolloutPhase.Name(phase_of(rollout)).removeprefix("ROLLOUT_PHASE_")
        raise WeirError(
            Reason.CONFLICT,
            f"the rollout of {alias} has ended: {phase}; `weir rollout start {alias}` begins another",
            limit="rollout",
        )
    return rollout


def _advance(snapshot: RegistrySnapshot, made: pb.Rollout, arm: str, now: float) -> Change[pb.Rollout]:
    here = Place(Phase(phase_of(made)), made.state.step)
    place = place_after(here, steps=len(made.steps), shadow=made.HasField("shadow"))
    if place is None:
        raise WeirError(
            Reason.CONFLICT,
            "an experiment has no next step; `weir rollout promote --arm` or `abort` ends it",
            limit="steering",
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
        _require(Fault("arm", f"say which arm to promote: {', '.join(names)}"))
    if arm and arm not in names:
        _require(Fault("arm", f"no arm {arm!r}; there are {', '.join(names)}"))
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
    """Whoever gets traffic must have it ready, nothing may be frozen, and what its arms may cost must not be spent:
    gates can be overruled, these cannot. The present step's cost, which is not stored yet, is the controller's to hold
    against the cap, whoever began the step."""
    most = rollout.blast_radius.max_cost_microusd
    if most and rollout.state.cost_microusd >= most:
        spent = (
            f"its arms have cost {rollout.state.cost_microusd} micro-dollars; blast_radius.max_cost_microusd is {most}"
        )
        raise WeirError(Reason.CONFLICT, spent, limit="max_cost")
    _require_now(killed(snapshot))
    if not rollout.override_reason:
        tiers = tiers_of((rollout.baseline, *(arm.model_version for arm in rollout.arms)), snapshot)
        _require_now(frozen(tiers, snapshot))
    workers = runners_of(snapshot)
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


def _restart(
    snapshot: RegistrySnapshot, request: pb.SteerRolloutRequest, *, rollout_id: str, actor: str, now: float
) -> Change[pb.Rollout]:
    stored = snapshot.rollouts.get(request.alias)
    if stored is None:
        raise WeirError(Reason.NOT_FOUND, f"no rollout of {request.alias!r}", limit="alias")
    if stored.id == rollout_id:
        # An attempt whose outcome was unclear had succeeded.
        return nothing(stored)
    made, beside = begun(snapshot, stored, rollout_id=rollout_id, actor=actor, now=now)
    require_ready(made, snapshot)
    made.state.reason = request.change.reason
    made.ClearField("revision")
    return Change(made, (put(made), *map(put, beside)))


def _shadow(snapshot: RegistrySnapshot, wanted: pb.Rollout) -> list[Message]:
    """The tenant of mirrored requests and its quota, where they are not there or otherwise."""
    if not wanted.HasField("shadow"):
        return []
    quota = pb.Limits(
        tenant=SHADOW_TENANT,
        model=wanted.alias,
        requests_per_minute=wanted.shadow.requests_per_minute or SHADOW_REQUESTS,
        tokens_per_minute=wanted.shadow.tokens_per_minute or SHADOW_TOKENS,
        rows_per_minute=wanted.shadow.rows_per_minute or SHADOW_ROWS,
    )
    made: list[Message] = []
    if SHADOW_TENANT not in snapshot.tenants:
        made.append(pb.Tenant(id=SHADOW_TENANT, display_name="Mirrored traffic", plan=pb.PLAN_FREE))
    there = snapshot.limits.get((SHADOW_TENANT, wanted.alias))
    if there is not None:
        quota.revision = there.revision
    return made if there == quota else [*made, quota]


def _require(fault: Fault) -> None:
    raise WeirError(Reason.INVALID_REQUEST, fault.message, limit=fault.field)


def _require_now(fault: Fault | None) -> None:
    if fault is not None:
        raise WeirError(Reason.CONFLICT, fault.message, limit=fault.field)
