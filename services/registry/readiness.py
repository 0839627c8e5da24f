"""Whether the mesh can carry out a rollout now, and undo it. What a rollout may say at all: libs/resources/checks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from weir.registry.v1 import registry_pb2 as pb

from libs.registry import runners_of, slo_of, tier_of
from libs.resources.checks.faults import Fault
from libs.resources.checks.predictions import PROFILES
from libs.resources.schemas import schema_changes, schema_of
from libs.resources.snapshot import RegistrySnapshot
from libs.rollouts import is_live
from libs.rollouts.exposure import WHOLE

ROUTE = "generate"
"""The route that rollouts are judged by..."""
PREDICT = "predict"
"""... and those of versions that predict, which have profiles for tiers."""
_EXHAUSTED = 1.0


def cannot_begin(rollout: pb.Rollout, snapshot: RegistrySnapshot) -> Fault | None:
    """Why a rollout that is well said cannot begin in the mesh as it is, or None.

    :param snapshot: with or without the rollout in it.
    """
    return next(_in_the_way(rollout, snapshot), None)


def killed(snapshot: RegistrySnapshot) -> Fault | None:
    """Why no arm gets traffic, override or not, or None."""
    switch = snapshot.switches.get("rollouts")
    if switch is None or not switch.kill:
        return None
    return Fault("switch.kill", f"the kill switch of rollouts is set: {switch.reason}")


def frozen(tiers: Collection[str], snapshot: RegistrySnapshot) -> Fault | None:
    """Why rollouts of these tiers may not start or go on without an override, or None."""
    switch = snapshot.switches.get("rollouts")
    if switch is not None and switch.freeze:
        return Fault("switch.freeze", f"rollouts are frozen: {switch.reason}; override_reason overrides")
    for tier in sorted(tiers):
        if used := ", ".join(_exhausted(snapshot, tier)):
            return Fault("budget", f"the error budget of tier {tier!r} is used up ({used}); override_reason overrides")
    return None


def tiers_of(names: Iterable[str], snapshot: RegistrySnapshot) -> set[str]:
    """The tiers of those of these versions that are registered."""
    return {tier_of(snapshot.model_versions[name]) for name in names if name in snapshot.model_versions}


def _in_the_way(rollout: pb.Rollout, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    stored = snapshot.rollouts.get(rollout.alias)
    if stored is not None and stored.id != rollout.id and is_live(stored):
        yield Fault("metadata.name", f"a rollout of {rollout.alias} is under way; abort it or let it end first")
    if fault := killed(snapshot):
        yield fault
    tiers = tiers_of([_baseline(rollout, snapshot), *(arm.model_version for arm in rollout.arms)], snapshot)
    for tier in sorted(tiers):
        if not _judges(snapshot, tier):
            what = "predictions of profile" if _route_of(tier) == PREDICT else "generation in tier"
            yield Fault("slo", f"no objectives are declared for {what} {tier!r}: nothing could judge it")
    yield from _without_capacity(rollout, snapshot)
    if not rollout.schema_changed:
        yield from _other_schemas(rollout, snapshot)
    if not rollout.override_reason and (fault := frozen(tiers, snapshot)):
        yield fault


def _without_capacity(rollout: pb.Rollout, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    workers = Counter(worker.pool for worker in runners_of(snapshot))
    baseline = snapshot.model_versions.get(_baseline(rollout, snapshot))
    for number, arm in enumerate(rollout.arms):
        version = snapshot.model_versions.get(arm.model_version)
        if version is None:
            continue
        field, have = f"spec.arms[{number}].model_version", workers[version.pool]
        if not have:
            yield Fault(
                field, f"no worker of pool {version.pool!r} is registered: there is no capacity for {arm.model_version}"
            )
        # In the baseline's own pool arms take at most `capacity_share` of it; in another, its workers must do.
        if baseline is None or version.pool == baseline.pool:
            continue
        share = max((step.weight for step in rollout.steps), default=arm.weight)
        beside = workers[baseline.pool]
        needed = math.ceil(beside * share / WHOLE)
        if have < needed:
            yield Fault(
                field,
                f"pool {version.pool!r} has {have} workers; {share / 100:g} % of what the {beside} of pool "
                f"{baseline.pool!r} serve needs {needed}",
            )


def _other_schemas(rollout: pb.Rollout, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Callers do not know which arm answers them: what one takes and gives, all must."""
    baseline = snapshot.model_versions.get(_baseline(rollout, snapshot))
    for number, arm in enumerate(rollout.arms):
        version = snapshot.model_versions.get(arm.model_version)
        if (
            baseline is None
            or version is None
            or not (baseline.HasField("prediction") and version.HasField("prediction"))
        ):
            continue
        if changes := schema_changes(baseline.prediction, version.prediction):
            schemas = f"{schema_of(version)[:12]}, not {schema_of(baseline)[:12]}"
            yield Fault(
                f"spec.arms[{number}].model_version",
                f"{arm.model_version} has another schema than {_baseline(rollout, snapshot)} ({schemas}): "
                f"{'; '.join(changes[:4])}; schema_changed (--schema-changed) says that callers know",
            )


def _baseline(rollout: pb.Rollout, snapshot: RegistrySnapshot) -> str:
    """The version that the alias gives now; empty when there is none."""
    alias = snapshot.aliases.get(rollout.alias)
    return alias.targets[0].model_version if alias is not None and alias.targets else ""


def _route_of(tier: str) -> str:
    return PREDICT if tier in PROFILES else ROUTE


def _judges(snapshot: RegistrySnapshot, tier: str) -> bool:
    slo = slo_of(snapshot, _route_of(tier), tier)
    if slo is None:
        return False
    # Objectives that declare nothing withdraw those before.
    return any(field.name not in ("route", "tier", "revision") for field, _ in slo.ListFields())


def _exhausted(snapshot: RegistrySnapshot, tier: str) -> list[str]:
    route = _route_of(tier)
    slo = slo_of(snapshot, route, tier)
    budget = snapshot.error_budgets.get((route, slo.tier)) if slo is not None else None
    used = budget.objectives if budget is not None else ()
    return [f"{each.objective} {each.consumed:.0%}" for each in used if each.consumed >= _EXHAUSTED]
