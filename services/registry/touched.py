"""What a change touches, of which tenants and namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.operators import Touched
from libs.changes import Write
from libs.registry import RegistrySnapshot
from libs.resources.codec import located
from libs.resources.namespaces import namespace_of
from libs.resources.references import named_by
from services.registry.applying import after, message_of


def touched(snapshot: RegistrySnapshot, writes: Iterable[Write]) -> Iterator[Touched]:
    """What is written over and what is written."""
    written = list(writes)
    then = after(snapshot, written)
    for kind, name in (place for write in written if (place := located(write.key)) is not None):
        for state in (snapshot, then):
            message = message_of(state, kind, name)
            if message is not None:
                namespaces = frozenset(namespace_of(version) for version in _versions(message, state))
                yield Touched(kind, kind.tenant_of(name, message) or "", namespaces)


def _versions(message: Message, snapshot: RegistrySnapshot) -> Iterator[pb.ModelVersion]:
    """A version itself, or those that something names that is about nothing but versions (aliases, pins, rollouts)."""
    if isinstance(message, pb.ModelVersion):
        yield message
        return
    named = named_by(message, ("models",))
    yield from (snapshot.model_versions[name] for name in named if name in snapshot.model_versions)
