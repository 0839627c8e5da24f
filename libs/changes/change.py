"""What a change writes: any number of resources, together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from libs.registry import RegistrySnapshot, keys

M = TypeVar("M", bound=Message)
MAX_WRITES = 120
"""Most resources of one change: etcd takes 128 operations in a transaction, of which fence, audit record and history
need three."""


@dataclass(frozen=True, slots=True)
class Write:
    """One resource of a change. The `Writer` compares it with what the plan saw."""

    key: str
    """Where it lies in the store."""
    value: bytes | None
    """As it shall be stored; None deletes it."""


@dataclass(frozen=True, slots=True)
class Change(Generic[M]):
    """What to write, and what to answer."""

    message: M
    """What the caller gets: mostly the resource. A `revision` of 0 in it is filled in with the new one."""
    writes: tuple[Write, ...]
    """Different keys; empty: all is as wanted already, nothing is written and nothing recorded."""


Plan = Callable[[RegistrySnapshot], Change[M]]
"""Decides by the very state that the writes are fenced to; it may be asked several times and has no effects.

:raises WeirError: the change is refused.
"""


def put(message: Message) -> Write:
    """The message under its own key, without its `revision`, which the store knows.

    :raises TypeError: for a message that the registry does not hold.
    """
    stored = type(message)()
    stored.CopyFrom(message)
    if "revision" in stored.DESCRIPTOR.fields_by_name:
        stored.ClearField("revision")
    return Write(keys.key_of(stored), keys.encode(stored))


def raw(key: str, value: bytes) -> Write:
    """A value as it was stored elsewhere or before, byte for byte."""
    return Write(key, value)


def delete(message: Message) -> Write:
    """The message's key, gone.

    :raises TypeError: for a message that the registry does not hold.
    """
    return Write(keys.key_of(message), None)


def nothing(message: M) -> Change[M]:
    """All is as wanted already; `message` is what is stored."""
    return Change(message, ())
