"""From a journal's frames to the state they stand for."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from libs.gcra import Changes, LeaseState, Ledger, ScopeState


@dataclass(frozen=True, slots=True)
class Frame:
    """One write of the journal."""

    at_ns: int
    """Wall-clock time of the state in it."""
    full: bool
    """A snapshot: everything before it is void."""
    changes: Changes


@dataclass(slots=True)
class Recovered:
    """The state after the last frame; each part with the time it was written."""

    scopes: dict[tuple[str, str], tuple[ScopeState, int]] = field(default_factory=dict)
    leases: dict[tuple[str, str], tuple[LeaseState, int]] = field(default_factory=dict)
    settled: dict[tuple[str, str], int] = field(default_factory=dict)


def fold(frames: Iterable[Frame]) -> Recovered:
    """Applies frames in order."""
    state = Recovered()
    for frame in frames:
        if frame.full:
            state = Recovered()
        for scope in frame.changes.scopes:
            state.scopes[(scope.tenant, scope.model)] = (scope, frame.at_ns)
        for lease in frame.changes.leases:
            state.leases[(lease.tenant, lease.request_id)] = (lease, frame.at_ns)
        for key in frame.changes.settled:
            state.leases.pop(key, None)
            state.settled[key] = frame.at_ns
    return state


def restore(ledger: Ledger, state: Recovered, *, now: int, wall_now: int, settled_retention_ns: int) -> None:
    """Puts the state into an empty ledger. Time that passed since counts; a clock that stepped back counts as none.

    :param now: the ledger's clock.
    :param wall_now: the clock of the frames.
    """
    for scope, at in state.scopes.values():
        ledger.restore_scope(scope, wall_now - at, now)
    for key, at in state.settled.items():
        if wall_now - at <= settled_retention_ns:
            ledger.restore_settled(key, now)
    for lease, at in state.leases.values():
        ledger.restore_lease(lease, wall_now - at, now)
