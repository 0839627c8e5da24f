"""What a journal holds, and how it becomes a replica's state again."""

from collections.abc import Iterable
from dataclasses import dataclass

from libs.quota import Logged, Replica, ReplicaState


@dataclass(frozen=True, slots=True)
class Frame:
    """One write of the journal."""

    at_ns: int
    """Wall-clock time of what is in it."""
    state: ReplicaState | None
    """A snapshot: everything before it is void."""
    log: tuple[Logged, ...] = ()
    """Decisions since the frame before, this replica's and others'."""


def restore(replica: Replica, frames: Iterable[Frame], *, now: int, wall_now: int) -> int:
    """Puts the frames into an empty replica, each as of its own time; returns how many batches and snapshots counted.

    Time that passed since counts; a clock that stepped back counts as none: never more is left than before. The journal
    is of a former life, whose part the replica goes on with like with another's.

    :param now: the ledger's clock.
    :param wall_now: the clock of the frames.
    """
    kept: list[Frame] = []
    for frame in frames:
        if frame.state is not None:
            kept.clear()
        kept.append(frame)
    applied = 0
    for frame in kept:
        then = now - max(0, wall_now - frame.at_ns)
        if frame.state is not None:
            replica.join(frame.state, then)
            applied += 1
        for logged in frame.log:
            applied += replica.follow(logged, then)
    replica.take_log()
    return applied
