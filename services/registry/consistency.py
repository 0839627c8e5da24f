"""The registry as a whole: what of it names something that is not there, or is otherwise not as it may be set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf import json_format
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.manifest import namespace_of
from libs.changes import Write, resource_of
from libs.registry import RegistrySnapshot, WatchEvent, apply_events, keys
from libs.rollouts import is_live
from services.registry import convert
from services.registry.policy import models, plans, safety, tenants
from services.registry.policy.faults import Fault

_NAMESPACED: Mapping[str, type[Message]] = {
    keys.MODELS: pb.ModelVersion,
    keys.ALIASES: pb.Alias,
    keys.PINS: pb.Pin,
    keys.ROLLOUTS: pb.Rollout,
}


def after(snapshot: RegistrySnapshot, writes: Iterable[Write]) -> RegistrySnapshot:
    """The snapshot as it would be with the writes, at the same revision."""
    events = [WatchEvent(write.key, write.value, snapshot.revision) for write in writes]
    return apply_events(snapshot, events, snapshot.revision)


def faults_of(snapshot: RegistrySnapshot) -> dict[str, Fault]:
    """By resource, the first thing that would be refused if it were set so now.

    There may be some in a registry that is fine: prices of versions that were deleted since, for one.
    """
    found: dict[str, Fault | None] = {}
    callable_models = snapshot.aliases.keys() | snapshot.model_versions.keys()
    pools = {version.pool for version in snapshot.model_versions.values()}
    pools.update(worker.pool for worker in snapshot.endpoints_of("worker"))
    owners = {workload: tenant.id for tenant in snapshot.tenants.values() for workload in tenant.workloads}
    policies = {name: policy.version for name, policy in snapshot.safety_policies.items()}
    for name, version in snapshot.model_versions.items():
        # Workers refuse a version whose safety policy is gone, or older than the one that it was evaluated with.
        found[f"models/{name}"] = models.check_model(convert.model_spec(version), policies=policies)
    for name, alias in snapshot.aliases.items():
        targets = convert.target_specs(alias)
        found[f"aliases/{name}"] = models.check_alias(name, targets, versions=snapshot.model_versions)
    for name, policy in snapshot.safety_policies.items():
        # Patterns were compiled when they were set; that they are still the same is what matters here.
        found[f"safety/{name}"] = safety.check_policy(name, convert.rule_specs(policy), pattern_fault=lambda _: "")
    for name, plan in snapshot.plans.items():
        found[f"plans/{name}"] = plans.check_plan(convert.plan_spec(plan), models=callable_models, pools=pools)
    for name, tenant in snapshot.tenants.items():
        found[f"tenants/{name}"] = tenants.check_tenant(
            convert.tenant_spec(tenant),
            policies=snapshot.safety_policies,
            plans=snapshot.plans,
            workload_owners=owners,
        )
    for (name, model), limits in snapshot.limits.items():
        spec = convert.limits_spec(limits)
        found[f"limits/{name}/{model}"] = tenants.check_limits(spec, tenants=snapshot.tenants, models=callable_models)
    for (route, tier), slo in snapshot.slos.items():
        found[f"slos/{route}/{tier}"] = plans.check_slo(convert.slo_spec(slo))
    for model, price in snapshot.prices.items():
        found[f"prices/{model}"] = plans.check_price(convert.price_spec(price), models=callable_models)
    found.update(_keys_and_rollouts(snapshot))
    return {resource: fault for resource, fault in found.items() if fault is not None}


def _keys_and_rollouts(snapshot: RegistrySnapshot) -> Iterable[tuple[str, Fault]]:
    for key_id, key in snapshot.keys.items():
        if key.tenant not in snapshot.tenants and not key.HasField("revoked_at"):
            yield f"keys/{key_id}", Fault("tenant", f"no tenant {key.tenant!r}; revoke the key first")
    for name, rollout in snapshot.rollouts.items():
        if not is_live(rollout):
            continue
        for version in (rollout.baseline, *(arm.model_version for arm in rollout.arms)):
            if version not in snapshot.model_versions:
                yield f"rollouts/{name}", Fault("rollout", f"no model version {version!r}")


def namespaces_of(snapshot: RegistrySnapshot, writes: Iterable[Write]) -> dict[str, str]:
    """The namespaces of what is written over and of what is written, each with one resource in it."""
    found: dict[str, str] = {}
    for write in writes:
        for prefix, kind in _NAMESPACED.items():
            if not write.key.startswith(prefix):
                continue
            versions = [*_stored_versions(snapshot, prefix, write.key.removeprefix(prefix))]
            if write.value is not None:
                message = json_format.Parse(write.value, kind())
                versions += [message] if isinstance(message, pb.ModelVersion) else _named(snapshot, message)
            found.update((namespace_of(version), resource_of(write.key)) for version in versions)
    return found


def _stored_versions(snapshot: RegistrySnapshot, prefix: str, name: str) -> list[pb.ModelVersion]:
    if prefix == keys.MODELS:
        stored = snapshot.model_versions.get(name)
        return [stored] if stored is not None else []
    collection: Mapping[str, Message] = {
        keys.ALIASES: snapshot.aliases,
        keys.PINS: snapshot.pins,
        keys.ROLLOUTS: snapshot.rollouts,
    }[prefix]
    return _named(snapshot, collection.get(name))


def _named(snapshot: RegistrySnapshot, message: Message | None) -> list[pb.ModelVersion]:
    """The registered versions that a resource names."""
    names: list[str] = []
    if isinstance(message, pb.Alias):
        names = [target.model_version for target in message.targets]
    elif isinstance(message, pb.Pin):
        names = [message.model_version]
    elif isinstance(message, pb.Rollout):
        names = [message.baseline, *(arm.model_version for arm in message.arms)]
    return [snapshot.model_versions[name] for name in names if name in snapshot.model_versions]
