"""Resources as they are stored and sent, and as those who decide by them see them.

Stored and sent is a `Resource`, in which a name or a revision stands once, in the metadata. Decided by is the kind's
own message, with those fields filled in: `unpack` and `pack` lead from one to the other.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError, Message
from weir.registry.v1 import registry_pb2 as pb

from libs.resources.kind import ROOT, SECRETS, Kind
from libs.resources.kinds import BY_MESSAGE, BY_PART, BY_PLURAL


def kind_of(resource: pb.Resource) -> Kind | None:
    """Its kind; None when it has none that this build knows."""
    part = resource.WhichOneof("spec") or resource.WhichOneof("status")
    return BY_PART.get(part or "")


def pack(message: Message) -> pb.Resource:
    """The message as a resource, without labels or owner.

    :raises KeyError: for a message that is of no kind.
    """
    kind = BY_MESSAGE[type(message)]
    resource = pb.Resource()
    metadata = resource.metadata
    metadata.name = kind.name_of(message)
    part = getattr(resource, kind.part)
    part.CopyFrom(message)
    part.SetInParent()
    for name in kind.key:
        part.ClearField(name)
    fields = message.DESCRIPTOR.fields_by_name
    if "revision" in fields:
        metadata.revision = message.revision  # type: ignore[attr-defined]
        part.ClearField("revision")
    if kind.namespace:
        metadata.namespace = getattr(message, kind.namespace)
        part.ClearField(kind.namespace)
    if kind.status and message.HasField(kind.status):
        getattr(resource, status_part(kind)).CopyFrom(getattr(message, kind.status))
        part.ClearField(kind.status)
    return resource


def unpack(resource: pb.Resource) -> Message:
    """The message of a resource, whole; its own copy.

    :raises ValueError: it is of no kind that this build knows, or its name does not fit the kind.
    """
    kind = kind_of(resource)
    if kind is None:
        raise ValueError("a resource of no known kind")
    message = kind.message()
    message.CopyFrom(getattr(resource, kind.part))
    name = resource.metadata.name
    if kind.key:
        parts = name.split(kind.joint, len(kind.key) - 1)
        if len(parts) != len(kind.key) or not all(parts):
            raise ValueError(f"{name!r} is no name of a {kind.name}")
        for field, part in zip(kind.key, parts, strict=True):
            setattr(message, field, part)
    if "revision" in message.DESCRIPTOR.fields_by_name:
        message.revision = resource.metadata.revision  # type: ignore[attr-defined]
    if kind.namespace:
        setattr(message, kind.namespace, resource.metadata.namespace)
    if kind.status and resource.WhichOneof("status"):
        getattr(message, kind.status).CopyFrom(getattr(resource, status_part(kind)))
    return message


def status_part(kind: Kind) -> str:
    """The field of `Resource` that holds the kind's status; empty when it has none."""
    if kind.observed:
        return BY_PLURAL[kind.observed].part
    if not kind.status:
        return ""
    held = kind.message.DESCRIPTOR.fields_by_name[kind.status].message_type
    return next(each.name for each in pb.Resource.DESCRIPTOR.fields if each.message_type is held)


def encode(message: Message) -> bytes:
    """A message, or a resource, as stored: without the revision, which the store knows; the same bytes for the same
    content.

    :raises KeyError: for a message that is of no kind.
    """
    resource = message if isinstance(message, pb.Resource) else pack(message)
    if resource.metadata.revision:
        resource, given = pb.Resource(), resource
        resource.CopyFrom(given)
        resource.metadata.revision = 0
    return resource.SerializeToString(deterministic=True)


def decode(value: bytes, revision: int) -> pb.Resource:
    """A stored resource, with its revision.

    :raises google.protobuf.message.DecodeError: it is none.
    """
    resource = pb.Resource.FromString(value)
    resource.metadata.revision = revision
    return resource


def read(kind: Kind, name: str, value: bytes, revision: int) -> pb.Resource | None:
    """What is stored under the place of a kind and name; None when it is unreadable, or something else lies there."""
    try:
        resource = decode(value, revision)
    except DecodeError:
        return None
    return resource if kind_of(resource) is kind and resource.metadata.name == name else None


def key_of(message: Message) -> str:
    """Where a message, or a resource, lies in the store.

    :raises KeyError: for a message that is of no kind.
    """
    if isinstance(message, pb.Resource):
        kind = kind_of(message)
        if kind is None:
            raise KeyError("a resource of no known kind")
        return kind.prefix + message.metadata.name
    kind = BY_MESSAGE[type(message)]
    return kind.prefix + kind.name_of(message)


def located(key: str) -> tuple[Kind, str] | None:
    """Kind and name of what lies under a key of the store; None when that is no resource."""
    root = next((each for each in (ROOT, SECRETS) if key.startswith(each)), None)
    if root is None:
        return None
    plural, _, name = key[len(root) :].partition("/")
    kind = BY_PLURAL.get(plural)
    # What lies under the other root was put there by somebody who may not write the kind.
    return (kind, name) if kind is not None and name and key.startswith(kind.prefix) else None


def redacted(resource: pb.Resource, *, bulk: bool = False) -> pb.Resource:
    """Without its secret fields, and without its bulk if asked; itself when it has none."""
    kind = kind_of(resource)
    hidden = kind.secret + (kind.bulk if bulk else ()) if kind is not None else ()
    if kind is None or not hidden:
        return resource
    shown = pb.Resource()
    shown.CopyFrom(resource)
    for field in hidden:
        getattr(shown, kind.part).ClearField(field)
    return shown
