"""Snapshots out of what the store says."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from weir.registry.v1 import registry_pb2

from libs.registry.ports import KeyValue, WatchEvent
from libs.resources.codec import located, read, unpack
from libs.resources.kinds import ATTRIBUTE, UNREADY, attribute_of
from libs.resources.snapshot import RegistrySnapshot


class _Unfollowed(Mapping[Any, Any]):
    """A collection of a kind that this process does not follow. It is not empty: it is not known."""

    def __getitem__(self, key: Any) -> Any:
        raise self._fault()

    def __iter__(self) -> Iterator[Any]:
        raise self._fault()

    def __len__(self) -> int:
        raise self._fault()

    def _fault(self) -> Exception:
        return RuntimeError("this process does not follow this kind of resource: name it in its view's `kinds`")


def following(kinds: Collection[str] | None) -> RegistrySnapshot:
    """An empty snapshot of a process that follows these kinds, by plural names; None: all."""
    unknown: dict[str, Any] = {
        attribute: _Unfollowed() for plural, attribute in ATTRIBUTE.items() if kinds is not None and plural not in kinds
    }
    return RegistrySnapshot(**unknown)


def snapshot_of(kvs: Iterable[KeyValue], revision: int, *, kinds: Collection[str] | None = None) -> RegistrySnapshot:
    """The snapshot of a listing; keys outside the layout, and kinds not followed, are ignored."""
    events = [WatchEvent(kv.key, kv.value, kv.mod_revision, kv.lease) for kv in kvs]
    return apply_events(following(kinds), events, revision, kinds=kinds)


def apply_events(
    snapshot: RegistrySnapshot, events: Iterable[WatchEvent], revision: int, *, kinds: Collection[str] | None = None
) -> RegistrySnapshot:
    """The snapshot after the events; as if listed anew at that revision. An endpoint that leaves is among
    the `unready` only."""
    changed: dict[str, dict[Any, Any]] = {}

    def writable(attribute: str) -> dict[Any, Any]:
        if attribute not in changed:
            changed[attribute] = dict(getattr(snapshot, attribute))
        return changed[attribute]

    for event in events:
        found = located(event.key)
        if found is None or (kinds is not None and found[0].plural not in kinds):
            continue
        kind, name = found
        entry = kind.entry(name)
        if entry is None:
            continue
        attribute = ATTRIBUTE[kind.plural]
        if event.key in changed.get("faults", snapshot.faults):
            del writable("faults")[event.key]
        if kind.message is registry_pb2.Endpoint and entry in changed.get(UNREADY, snapshot.unready):
            del writable(UNREADY)[entry]
        if event.value is None:
            writable(attribute).pop(entry, None)
            continue
        resource = read(kind, name, event.value, event.mod_revision)
        try:
            if resource is None:
                raise ValueError("unreadable, or of another kind or name")
            message = unpack(resource)
        except ValueError as error:
            # One unreadable value must not hide the rest of the registry; it is reported where it can be seen.
            writable("faults")[event.key] = f"no {kind.name}: {error}"
            writable(attribute).pop(entry, None)
            continue
        if attribute_of(message) != attribute:
            writable(attribute).pop(entry, None)
        writable(attribute_of(message))[entry] = message
    frozen: dict[str, Any] = {name: MappingProxyType(entries) for name, entries in changed.items()}
    return replace(snapshot, revision=revision, **frozen)
