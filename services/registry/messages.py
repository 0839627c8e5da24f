"""What every plan of a change needs: copies, times, replacing by revision, and faults as refusals."""

from __future__ import annotations

from libs.changes import Change, M, nothing, put
from libs.errors import Reason, WeirError
from services.registry.policy.faults import Fault

WHATEVER = -1
"""The `revision` of a write that does not care what it replaces."""


def replaced(resource: str, wanted: M, stored: M | None) -> Change[M]:
    """The resource as wanted, if it is at the revision that `wanted.revision` says.

    :param resource: its name for people, "limits/acme/*".
    :raises WeirError: CONFLICT.
    """
    current = at_revision(resource, wanted, stored)
    made = copy(wanted)
    made.revision = current  # type: ignore[attr-defined]
    if stored is not None and made == stored:
        return nothing(stored)
    made.ClearField("revision")
    return Change(made, (put(made),))


def at_revision(resource: str, wanted: M, stored: M | None) -> int:
    """The present revision, if it is the one that was read.

    :raises WeirError: CONFLICT.
    """
    current: int = stored.revision if stored is not None else 0  # type: ignore[attr-defined]
    expected = wanted.revision  # type: ignore[attr-defined]
    if expected not in (WHATEVER, current):
        state = f"is at revision {current}" if current else "does not exist"
        raise WeirError(
            Reason.CONFLICT, f"{resource} {state}, not at revision {expected}; read it again", limit="revision"
        )
    return current


def copy(message: M) -> M:
    """A message of its own."""
    copied: M = type(message)()
    copied.CopyFrom(message)
    return copied


def require(fault: Fault | None) -> None:
    """Refuses what has a fault.

    :raises WeirError: INVALID_REQUEST.
    """
    if fault is not None:
        raise WeirError(Reason.INVALID_REQUEST, fault.message, limit=fault.field)
