"""One sequence of the simulated engine."""

from __future__ import annotations

import math

from services.worker.engines.port import SequenceRequest, TokenLogprob
from services.worker.engines.simulated_versions import SOUND, SimulatedVersion


class SimulatedSequence:
    """A live sequence."""

    __slots__ = (
        "blocks",
        "cursor",
        "decoding",
        "draws",
        "fails_at",
        "faults",
        "held",
        "least",
        "left",
        "limit",
        "owed",
        "position",
        "produced",
        "request",
        "stop",
        "urgency",
        "version",
    )

    def __init__(
        self,
        request: SequenceRequest,
        cursor: int,
        limit: int,
        stop: frozenset[int],
        blocks: int,
        urgency: tuple[int, int],
        version: SimulatedVersion,
    ) -> None:
        self.request = request
        self.version = version
        self.draws = version.draws
        self.faults = None if version.faults is SOUND else version.faults
        self.fails_at = version.fails_at()
        self.owed = 0.0  # seconds that its version's slowness still costs it before its next token
        self.urgency = urgency  # priority, arrival: the least first
        self.cursor = cursor  # seeded: start in the table of draws; greedy: -1 - the last token
        self.limit = limit
        self.stop = stop
        self.least = request.params.min_tokens
        self.blocks = blocks  # of the longest output
        self.held = 0  # blocks; none before it left the queue
        self.left = len(request.prompt)  # tokens not yet computed, before it decodes
        self.position = len(request.prompt)
        self.produced = 0
        self.decoding = False

    def other_than_stop(self, token: int) -> int:
        """A token that ends nothing, the same for the same token; itself where all of them end it."""
        return next((other for other in self.draws[token % len(self.draws) :] if other not in self.stop), token)


def urgency(sequence: SimulatedSequence) -> tuple[int, int]:
    """Its order among others: the least first."""
    return sequence.urgency


def deadline(sequence: SimulatedSequence) -> float:
    """When it ends in any case; infinity without one."""
    return math.inf if sequence.request.deadline is None else sequence.request.deadline


def logprobs_of(token: int, sequence: SimulatedSequence) -> TokenLogprob:
    """The draw is uniform, so every token is as likely as every other."""
    version, alternatives = sequence.version, sequence.request.params.logprobs or 0
    others = (other for other in dict.fromkeys(version.draws[:64]) if other != token)
    top = [token, *others][:alternatives]
    return TokenLogprob(version.logprob, [(each, version.logprob) for each in top])
