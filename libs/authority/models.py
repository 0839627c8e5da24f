"""Which tenant may use which model: what is not granted does not exist for it.

`ModelAccess.may_use` is the one decision; routing asks it for every name that a caller brings (libs/routing), and so do
whoever lists, places and mirrors. A tenant has what the grants to it, to its plan and to all give together; there are
no denials, and no tenant that is not registered has anything. A registry without grants serves nobody.

An alias is granted by its name, or by the namespaces of the versions that it gives; then arms of rollouts count, too:
whoever is granted the alias and not the namespace of every arm stays outside the rollout. A version by its own name
("weir-fast@2": released or not, an adapter too) is granted by that name, or by a grant of all versions of its
namespace; never by an alias that gives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from weir.registry.v1 import registry_pb2 as pb

from libs.registry import RegistrySnapshot, plan_name
from libs.resources.namespaces import namespace_of

ALL = "all"
"""The subject of the grant to every tenant."""
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Granted:
    """What somebody is granted; see `ModelGrant`."""

    namespaces: frozenset[str] = _NONE
    """Of aliases."""
    models: frozenset[str] = _NONE
    """Aliases and versions by name."""
    pinned: frozenset[str] = _NONE
    """Namespaces of versions by name."""

    @classmethod
    def of(cls, grant: pb.ModelGrant) -> Granted:
        """What one grant gives."""
        return cls(frozenset(grant.namespaces), frozenset(grant.models), frozenset(grant.pinned_namespaces))

    def __or__(self, other: Granted) -> Granted:
        return Granted(self.namespaces | other.namespaces, self.models | other.models, self.pinned | other.pinned)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a tenant may use a model, and why."""

    allowed: bool
    by: tuple[str, ...] = ()
    """Subjects of the grants that give it, or a part of it."""
    missing: tuple[str, ...] = ()
    """Namespaces that nothing grants; empty when it is allowed, and when there is no such tenant or model."""
    tenant: bool = True
    """The tenant is registered."""
    model: bool = True
    """There is such a model: an alias of a registered version, or such a version."""


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """Grants as requests meet them, gathered once per snapshot: a decision is two or three look-ups."""

    snapshot: RegistrySnapshot = field(default=RegistrySnapshot(), repr=False)
    granted: Mapping[str, Granted] = field(default_factory=dict)
    """By subject."""
    tenants: Mapping[str, Granted] = field(default_factory=dict)
    """By registered tenant: everything that it is granted."""
    released: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Alias → namespaces of the versions that it gives; empty when none of those is registered."""

    @classmethod
    def of(cls, snapshot: RegistrySnapshot, before: ModelAccess) -> ModelAccess:
        """Gathers them: O(tenants + aliases), and only what rests on collections that changed since `before`."""
        old = before.snapshot
        same_grants = snapshot.model_grants is old.model_grants
        same_versions = snapshot.model_versions is old.model_versions
        granted, tenants, released = before.granted, before.tenants, before.released
        if not same_grants:
            granted = {subject: Granted.of(grant) for subject, grant in snapshot.model_grants.items()}
        if not same_grants or snapshot.tenants is not old.tenants:
            known = old.tenants if same_grants else {}
            tenants = {
                name: before.tenants[name] if known.get(name) is tenant else _union(granted, tenant)
                for name, tenant in snapshot.tenants.items()
            }
        if not same_versions or snapshot.aliases is not old.aliases:
            released = _released(snapshot, before.released, old.aliases if same_versions else {})
        return cls(snapshot, granted, tenants, released)

    def may_use(self, tenant: str, name: str) -> bool:
        """Whether the tenant may ask for this: an alias or a pinned "name@version". False for what there is not."""
        given = self.tenants.get(tenant)
        if given is None:
            return False
        if "@" in name:
            version = self.snapshot.model_versions.get(name)
            return version is not None and (name in given.models or namespace_of(version) in given.pinned)
        namespaces = self.released.get(name, _NONE)
        return bool(namespaces) and (name in given.models or namespaces <= given.namespaces)

    def may_meet(self, tenant: str, alias: str, versions: Iterable[str]) -> bool:
        """Whether the tenant may be given all of these by an alias that it may use: the arms of its rollout."""
        given = self.tenants.get(tenant, Granted())
        known = self.snapshot.model_versions
        return alias in given.models or all(
            (version := known.get(name)) is None or namespace_of(version) in given.namespaces for name in versions
        )

    def explain(self, tenant: str, name: str) -> Decision:
        """As `may_use`, with the grants that give it and what is missing; for people."""
        known, needed = self.snapshot.tenants.get(tenant), self._needed(name)
        if known is None or not needed:
            return Decision(False, tenant=known is not None, model=bool(needed))
        pinned = "@" in name
        by, missing = [], set(needed)
        for subject in subjects_of(known):
            given = self.granted.get(subject, Granted())
            gives = needed if name in given.models else needed & (given.pinned if pinned else given.namespaces)
            if gives:
                by.append(subject)
                missing -= gives
        return Decision(not missing, tuple(by), tuple(sorted(missing)))

    def giving(self, tenant: str, version: str) -> list[str]:
        """Aliases by which the tenant gets a version, whether or not it may ask for it by its name; sorted."""
        return [
            name
            for name, alias in sorted(self.snapshot.aliases.items())
            if self.may_use(tenant, name) and any(target.model_version == version for target in alias.targets)
        ]

    def _needed(self, name: str) -> frozenset[str]:
        if "@" not in name:
            return self.released.get(name, _NONE)
        version = self.snapshot.model_versions.get(name)
        return _NONE if version is None else frozenset((namespace_of(version),))


def subjects_of(tenant: pb.Tenant) -> tuple[str, ...]:
    """What grants to a tenant are called, from its own to the general one."""
    return f"tenant:{tenant.id}", f"plan:{plan_name(tenant)}", ALL


def _union(granted: Mapping[str, Granted], tenant: pb.Tenant) -> Granted:
    found = [granted[subject] for subject in subjects_of(tenant) if subject in granted]
    if not found:
        return Granted()
    first, *others = found
    for other in others:
        first |= other
    return first


def _released(
    snapshot: RegistrySnapshot, before: Mapping[str, frozenset[str]], known: Mapping[str, pb.Alias]
) -> dict[str, frozenset[str]]:
    """:param known: aliases as they were for `before`; those that are the same objects are not looked at again."""
    versions = snapshot.model_versions
    return {
        name: before[name]
        if known.get(name) is alias
        else frozenset(
            namespace_of(version) for target in alias.targets if (version := versions.get(target.model_version))
        )
        for name, alias in snapshot.aliases.items()
    }
