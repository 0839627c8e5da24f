"""What a change writes: any number of resources, together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import RegistrySnapshot, keys
from libs.resources.codec import pack

M = TypeVar("M", bound=Message)
MAX_WRITES = 2000
"""Most resources of one change. etcd counts them, and their comparisons, against `--max-txn-ops`, which must be above
this (the mesh's own etcd has 4096; etcd's default is 128), and their bytes, with both sides of each in the history,
against `--max-request-bytes`. What is too much for the etcd at hand it refuses, and nothing is changed."""


@dataclass(frozen=True, slots=True)
class Write:
    """One resource of a change. The `Writer` compares it with what the plan saw."""

    key: str
    """Where it lies in the store."""
    resource: pb.Resource | None
    """As it shall be; None deletes it."""
    keep: bool = False
    """Labels and owner stay what they are in the store."""


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
    """The message under its own key, with the labels and the owner that it has.

    :raises KeyError: for a message that is of no kind.
    """
    return Write(keys.key_of(message), pack(message), keep=True)


def nothing(message: M) -> Change[M]:
    """All is as wanted already; `message` is what is stored."""
    return Change(message, ())
