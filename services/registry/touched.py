"""Namespaces that a change touches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.manifest import namespace_of
from libs.changes import Write, resource_of
from libs.registry import RegistrySnapshot
from libs.resources.codec import located, unpack
from libs.resources.references import named_by
from services.registry.applying import message_of


def namespaces_of(snapshot: RegistrySnapshot, writes: Iterable[Write]) -> dict[str, str]:
    """The namespaces of what is written over and of what is written, each with one resource in it: of versions, and of
    what is about nothing but versions (aliases, pins, rollouts).
    """
    found: dict[str, str] = {}
    for write in writes:
        place = located(write.key)
        if place is None:
            continue
        before = message_of(snapshot, *place)
        after = unpack(write.resource) if write.resource is not None else None
        for version in (*_versions(before, snapshot), *_versions(after, snapshot)):
            found[namespace_of(version)] = resource_of(write.key)
    return found


def _versions(message: Message | None, snapshot: RegistrySnapshot) -> Iterator[pb.ModelVersion]:
    if isinstance(message, pb.ModelVersion):
        yield message
    elif message is not None:
        named = named_by(message, ("models",))
        yield from (snapshot.model_versions[name] for name in named if name in snapshot.model_versions)
