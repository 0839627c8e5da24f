"""What the output filter is asked: one call per engine step, for all texts together."""

from __future__ import annotations

from dataclasses import dataclass, field

from weir.safety.v1 import safety_pb2

from services.gateway.ports import FilteredChoice


@dataclass(slots=True, eq=False)
class Filter:
    """One text on its way through the filter."""

    number: int
    choice: FilteredChoice
    tenant: str
    policies: tuple[str, ...]
    request_id: str
    context: str = ""  # the end of the decided text
    undecided: str = ""  # fed, and not decided yet
    fed: int = 0  # characters fed in all
    last: bool = False  # the text is complete
    opened: int = 0  # the stream it is open on; 0: nowhere
    base: int = 0  # characters decided when it was opened there
    wire: int = 0  # its number there; a new one each time it is opened, since the old one may still be open
    turn: int = 0  # the batch that it was added to last
    slot: int = 0  # where in that batch
    epoch: int = 0  # grows with each reopening, so that answers from before are told apart
    blocked_since: float | None = None  # when its feed first could not be sent
    json: bool = False  # the text is JSON


@dataclass(slots=True)
class Batch:
    """One FilterOutput call under construction: parallel arrays."""

    filters: list[Filter] = field(default_factory=list)
    deltas: list[str] = field(default_factory=list)
    opens: list[Filter] = field(default_factory=list)


def call_of(batch: Batch, closing: list[int]) -> safety_pb2.SafetyCall:
    """The batch as a message, which also closes filters by their numbers there.

    :raises ValueError: a text cannot be encoded.
    """
    call = safety_pb2.SafetyCall()
    feed = call.filter_output
    for entry in batch.opens:
        feed.open.add(
            filter=entry.wire,
            tenant=entry.tenant,
            policies=entry.policies,
            request_id=entry.request_id,
            context=entry.context,
            json=entry.json,
        )
    feed.filters.extend([entry.wire for entry in batch.filters])
    feed.deltas.extend(batch.deltas)
    feed.last.extend([entry.last for entry in batch.filters])
    if closing:
        feed.close.extend(closing)
    return call


def fits(output: safety_pb2.OutputReleased, count: int) -> bool:
    """Whether an answer is about as many filters as were asked about."""
    return (
        len(output.released) == count == len(output.held)
        and all(found.position < count for found in output.findings)
        and all(span.position < count for span in output.replaced)
    )
