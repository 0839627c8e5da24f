"""What a journal holds, and how it becomes a replica's state again."""

from collections.abc import Sequence
from dataclasses import dataclass

from libs.quota import Joining, Logged, Piece, Replica


@dataclass(frozen=True, slots=True)
class Frame:
    """One write of the journal."""

    at_ns: int
    """Wall-clock time of what is in it."""
    piece: Piece | None = None
    """Of the snapshot with which the file began."""
    log: tuple[Logged, ...] = ()
    """Decisions since the frame before, this replica's and others'."""


def restore(replica: Replica, frames: Sequence[Frame], *, now: int, wall_now: int) -> int:
    """Puts the frames into an empty replica, each as of its own time; returns how many batches and pieces counted.

    First the pieces of the snapshot, then what was decided while it was written and after it. Time that passed since
    counts; a clock that stepped back counts as none: never more is left than before. The journal is of a former life,
    whose part the replica goes on with like with another's.

    :param now: the ledger's clock.
    :param wall_now: the clock of the frames.
    """
    applied = 0
    joining: Joining | None = None
    for frame in frames:
        if frame.piece is not None:
            joining = replica.join(frame.piece, now - max(0, wall_now - frame.at_ns), joining)
            applied += 1
    for frame in frames:
        for logged in frame.log:
            applied += replica.follow(logged, now - max(0, wall_now - frame.at_ns))
    replica.take_log()
    return applied
