"""Whose a data key is, and which keys an erasure destroys. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple


class Owner(NamedTuple):
    """Whose data a key seals, of one month."""

    tenant: str
    """Empty: the mesh's own."""
    subject: str
    """A keyed digest of the tenant's end user; empty where a record names none."""
    data_class: str
    """The kind of record, "request"."""
    month: str
    """"2026-11"."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose key a record needs."""

    tenant: str
    subject: str
    """The end user as the record names it; empty for none."""
    data_class: str
    told: str
    """The record's own month."""


@dataclass(frozen=True, slots=True)
class KeyName:
    """What a sealed record says of its key, in the clear."""

    id: str
    """16 hex digits: 10 of a serial number that only grows, 6 drawn at random. Never used again."""
    tenant: str
    data_class: str
    month: str

    @property
    def serial(self) -> int:
        """Its number: a key of a lower one was made before."""
        return serial_of(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What an erasure is about: a tenant, a tenant's subject, or a class of data before a month."""

    upto: int
    """The last key's serial number at that time: later keys seal what came afterwards."""
    tenant: str = ""
    subject: str = ""
    """The keyed digest; the keys that it had are in `keys`, for records do not carry it."""
    data_class: str = ""
    before: str = ""
    """Only months before this one."""
    keys: frozenset[str] = frozenset()
    """Exactly these, where a subject is given."""

    def covers(self, key: KeyName) -> bool:
        """Whether the key is to be destroyed. A scope that names neither tenant nor class and month covers nothing."""
        if key.serial > self.upto:
            return False
        if self.subject:
            return key.id in self.keys
        if not self.tenant and not (self.data_class and self.before):
            return False
        return (
            self.tenant in ("", key.tenant)
            and self.data_class in ("", key.data_class)
            and (not self.before or key.month < self.before)
        )


def key_id(serial: int, drawn: bytes) -> str:
    """A key's id; `drawn` are 3 random bytes."""
    return f"{serial:010x}{drawn.hex()}"


def serial_of(key: str) -> int:
    """The serial number in a key's id.

    :raises ValueError: it is none.
    """
    return int(key[:10], 16)


def month_of(seconds: float) -> str:
    """The month of a moment (Unix seconds), UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m")


def sealing_month(newest: str, own: str, told: str) -> str:
    """The month under whose key a record is sealed. A new one begins once two clocks say so, this process's own and
    that of the record's writer, and none comes again: a clock that jumps ahead alone opens no month of the future,
    whose keys would outlive their time, and one that jumps back none of the past, whose keys retention would destroy.

    :param newest: the newest month that has a key; empty before the first.
    :param own: the month by this process's clock, and `told` as the record says.
    """
    return max(newest, min(own, told))
