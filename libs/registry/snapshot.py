"""The registry at one revision, decoded: the immutable value that every service decides by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import keys
from libs.registry.ports import KeyValue, WatchEvent


def _empty() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RegistrySnapshot:
    """The registry at one revision; messages in it are shared and must not be changed.

    Collections are copied on write: one that is the same object as in an older snapshot has not changed.
    """

    revision: int = 0
    """The store's revision; 0 means that nothing was ever read."""
    model_versions: Mapping[str, pb.ModelVersion] = field(default_factory=_empty)
    """By "name@version"."""
    aliases: Mapping[str, pb.Alias] = field(default_factory=_empty)
    """By name; `.revision` is filled in."""
    tenants: Mapping[str, pb.Tenant] = field(default_factory=_empty)
    """By id; `.revision` is filled in."""
    keys: Mapping[str, pb.ApiKey] = field(default_factory=_empty)
    """By public id."""
    limits: Mapping[tuple[str, str], pb.Limits] = field(default_factory=_empty)
    """By (tenant, model or "*"); `.revision` is filled in."""
    safety_policies: Mapping[str, pb.SafetyPolicy] = field(default_factory=_empty)
    """By id; `.revision` is filled in."""
    plans: Mapping[str, pb.PlanPolicy] = field(default_factory=_empty)
    """By id; `.revision` is filled in."""
    slos: Mapping[tuple[str, str], pb.Slo] = field(default_factory=_empty)
    """By (route, tier or "*"); `.revision` is filled in."""
    prices: Mapping[str, pb.Price] = field(default_factory=_empty)
    """By model or "*"; `.revision` is filled in."""
    trust: Mapping[str, pb.TrustPolicy] = field(default_factory=_empty)
    """By namespace; `.revision` is filled in."""
    pins: Mapping[str, pb.Pin] = field(default_factory=_empty)
    """By "name@version"; `.revision` is filled in."""
    rollouts: Mapping[str, pb.Rollout] = field(default_factory=_empty)
    """By alias, ended ones too; `.revision` is filled in."""
    switches: Mapping[str, pb.RolloutSwitch] = field(default_factory=_empty)
    """"rollouts" → the kill switch; `.revision` is filled in."""
    budgets: Mapping[tuple[str, str], pb.ErrorBudget] = field(default_factory=_empty)
    """By (route, tier)."""
    roles: Mapping[str, pb.RoleBinding] = field(default_factory=_empty)
    """By principal; `.revision` is filled in."""
    levels: Mapping[str, pb.PoolLevel] = field(default_factory=_empty)
    """By pool."""
    endpoints: Mapping[tuple[str, str], pb.Endpoint] = field(default_factory=_empty)
    """By (service, instance)."""
    faults: Mapping[str, str] = field(default_factory=_empty)
    """Store key → why its value could not be read; such a key is absent from its collection."""

    def endpoints_of(self, service: str) -> list[pb.Endpoint]:
        """Live endpoints of a service, by instance."""
        return [self.endpoints[key] for key in sorted(self.endpoints) if key[0] == service]

    def same_contents(self, other: RegistrySnapshot) -> bool:
        """Whether nothing but the revision changed, by identity of the collections."""
        return all(getattr(self, name) is getattr(other, name) for name in self.__slots__ if name != "revision")


@dataclass(frozen=True, slots=True)
class _Collection:
    """How keys under one prefix become entries of one collection."""

    prefix: str
    attribute: str
    message: Callable[[], Message]
    parts: int = 1
    """Path parts of the entry's key; entries of two parts are keyed by a tuple."""
    revisioned: bool = False
    """The message has a `revision` field that is filled from the store."""


_COLLECTIONS = (
    _Collection(keys.MODELS, "model_versions", pb.ModelVersion),
    _Collection(keys.ALIASES, "aliases", pb.Alias, revisioned=True),
    _Collection(keys.TENANTS, "tenants", pb.Tenant, revisioned=True),
    _Collection(keys.KEYS, "keys", pb.ApiKey),
    _Collection(keys.LIMITS, "limits", pb.Limits, parts=2, revisioned=True),
    _Collection(keys.SAFETY, "safety_policies", pb.SafetyPolicy, revisioned=True),
    _Collection(keys.PLANS, "plans", pb.PlanPolicy, revisioned=True),
    _Collection(keys.SLOS, "slos", pb.Slo, parts=2, revisioned=True),
    _Collection(keys.PRICES, "prices", pb.Price, revisioned=True),
    _Collection(keys.TRUST, "trust", pb.TrustPolicy, revisioned=True),
    _Collection(keys.PINS, "pins", pb.Pin, revisioned=True),
    _Collection(keys.ROLLOUTS, "rollouts", pb.Rollout, revisioned=True),
    _Collection(keys.SWITCHES, "switches", pb.RolloutSwitch, revisioned=True),
    _Collection(keys.BUDGETS, "budgets", pb.ErrorBudget, parts=2),
    _Collection(keys.ROLES, "roles", pb.RoleBinding, revisioned=True),
    _Collection(keys.LEVELS, "levels", pb.PoolLevel),
    _Collection(keys.ENDPOINTS, "endpoints", pb.Endpoint, parts=2),
)


def snapshot_of(kvs: Iterable[KeyValue], revision: int) -> RegistrySnapshot:
    """The snapshot of a listing of `keys.ROOT`; keys outside the layout are ignored."""
    events = [WatchEvent(kv.key, kv.value, kv.mod_revision, kv.lease) for kv in kvs]
    return apply_events(RegistrySnapshot(), events, revision)


def apply_events(snapshot: RegistrySnapshot, events: Iterable[WatchEvent], revision: int) -> RegistrySnapshot:
    """The snapshot after the events; the same as listing anew at that revision."""
    changed: dict[str, dict[Any, Any]] = {}

    def writable(attribute: str) -> dict[Any, Any]:
        if attribute not in changed:
            changed[attribute] = dict(getattr(snapshot, attribute))
        return changed[attribute]

    for event in events:
        found = _locate(event.key)
        if found is None:
            continue
        collection, entry = found
        if event.key in changed.get("faults", snapshot.faults):
            del writable("faults")[event.key]
        if event.value is None:
            writable(collection.attribute).pop(entry, None)
            continue
        try:
            message = json_format.Parse(event.value, collection.message(), ignore_unknown_fields=True)
        except (json_format.ParseError, UnicodeDecodeError) as error:
            # One unreadable value must not hide the rest of the registry; it is reported where it can be seen.
            writable("faults")[event.key] = f"{type(error).__name__}: not a {collection.attribute} value"
            writable(collection.attribute).pop(entry, None)
            continue
        if collection.revisioned:
            message.revision = event.mod_revision  # type: ignore[attr-defined]
        writable(collection.attribute)[entry] = message
    frozen: dict[str, Any] = {name: MappingProxyType(entries) for name, entries in changed.items()}
    return replace(snapshot, revision=revision, **frozen)


def _locate(key: str) -> tuple[_Collection, str | tuple[str, ...]] | None:
    for collection in _COLLECTIONS:
        if key.startswith(collection.prefix):
            parts = tuple(key[len(collection.prefix) :].split("/", collection.parts - 1))
            if len(parts) != collection.parts or not all(parts):
                return None
            return collection, parts[0] if collection.parts == 1 else parts
    return None
