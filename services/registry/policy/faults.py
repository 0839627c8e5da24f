"""What is wrong with a change, and the names that may be used."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")
_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,31})")
_HEX64 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a change is refused."""

    field: str
    """The path of the offending field, "alias.targets[1].weight"."""
    message: str
    """One sentence for the operator."""


def check_name(field: str, value: str) -> Fault | None:
    """A model or alias name: lower case letters, digits, dots and dashes, 1 to 63 characters."""
    return None if _NAME.fullmatch(value) else Fault(field, f"{field} must be lower case letters, digits, '.' and '-'")


def check_id(field: str, value: str) -> Fault | None:
    """A tenant or policy id: lower case letters, digits and dashes, 1 to 63 characters."""
    return None if _ID.fullmatch(value) else Fault(field, f"{field} must be lower case letters, digits and '-'")


def check_version(field: str, value: str) -> Fault | None:
    """A version: letters, digits, dots, dashes and underscores, 1 to 32 characters."""
    return None if _VERSION.fullmatch(value) else Fault(field, f"{field} must be letters, digits, '.', '-' and '_'")


def check_sha256(field: str, value: str) -> Fault | None:
    """64 lower case hex digits."""
    return None if _HEX64.fullmatch(value) else Fault(field, f"{field} must be 64 lower case hex digits")


def check_text(field: str, value: str, longest: int) -> Fault | None:
    """Text for people: bounded, without control characters."""
    if len(value) > longest:
        return Fault(field, f"{field} must have at most {longest} characters")
    return None if value.isprintable() else Fault(field, f"{field} must not hold control characters")
