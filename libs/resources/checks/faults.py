"""What is wrong with a resource, and the names that may be used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")
_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,31})")
_HEX64 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a change is refused."""

    field: str
    """The path of the offending field, "spec.targets[1].weight" or "metadata.name"."""
    message: str
    """One sentence for the operator."""


def check_name(field: str, value: str) -> Iterator[Fault]:
    """A model or alias name: lower case letters, digits, dots and dashes, 1 to 63 characters."""
    if not _NAME.fullmatch(value):
        yield Fault(field, "must be 1 to 63 lower case letters, digits, '.' and '-'")


def check_id(field: str, value: str) -> Iterator[Fault]:
    """A tenant or policy id: lower case letters, digits and dashes, 1 to 63 characters."""
    if not _ID.fullmatch(value):
        yield Fault(field, "must be 1 to 63 lower case letters, digits and '-'")


def check_version(field: str, value: str) -> Iterator[Fault]:
    """A version: letters, digits, dots, dashes and underscores, 1 to 32 characters."""
    if not _VERSION.fullmatch(value):
        yield Fault(field, "must be 1 to 32 letters, digits, '.', '-' and '_'")


def check_sha256(field: str, value: str) -> Iterator[Fault]:
    """64 lower case hex digits."""
    if not _HEX64.fullmatch(value):
        yield Fault(field, "must be 64 lower case hex digits")


def check_text(field: str, value: str, longest: int) -> Iterator[Fault]:
    """Text for people: bounded, without control characters."""
    if len(value) > longest:
        yield Fault(field, f"must have at most {longest} characters")
    if not value.isprintable():
        yield Fault(field, "must not hold control characters")
