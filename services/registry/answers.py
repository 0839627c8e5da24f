"""What a change is answered with, once it is written. Pure."""

from __future__ import annotations

from typing import TypeVar

from weir.registry.v1 import registry_pb2 as pb

from libs.changes import Committed
from libs.resources.kinds import BY_NAME

R = TypeVar("R", pb.ApplyResponse, pb.DeleteResponse)
MAX_CHANGES_BYTES = 8_000_000
"""Of what an answer tells of changes; gRPC takes 16 MiB. Of the rest it tells the outcome."""


def finished(done: Committed[R], options: pb.ChangeOptions) -> R:
    """The answer, with the revisions that it could not know before it was written."""
    message = done.message
    message.revision = done.revision
    changes, room = {each.resource: each for each in done.changes}, MAX_CHANGES_BYTES
    for result in message.results:
        change = changes.get(f"{BY_NAME[result.resource.kind].plural}/{result.resource.name}")
        if change is None:
            continue
        room -= change.ByteSize()
        if room >= 0:
            result.change.CopyFrom(change)
        if result.outcome != pb.OUTCOME_DELETED and not options.dry_run:
            result.resource.revision = done.revision
    return message
