"""What one gateway has not read yet: the output of one step, or of several merged while it reads slowly.

The engine never waits for a reader. Steps that end while a frame is being written are merged: one entry per sequence
however many steps passed, so the outbox grows with tokens, not with steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.worker.engines.port import FinishReason, TokenLogprob


@dataclass(slots=True)
class Batch:
    """The next frame's content; keys and numbers are the gateway's own."""

    step: int = 0
    """The last step in it."""
    steps: int = 0
    """How many were merged."""
    tokens: dict[int, list[int]] = field(default_factory=dict)
    first: list[tuple[int, int, float, str]] = field(default_factory=list)
    """(sequence, prompt tokens served from the prefix cache, seconds from its submission to its first token, what the
    model's numbers are known by)."""
    finished: list[tuple[int, FinishReason, str]] = field(default_factory=list)
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Nothing to send."""
        return not (self.tokens or self.finished)


class Outbox:
    """Gathers a gateway's output between two writes."""

    __slots__ = ("batch", "unread")

    def __init__(self) -> None:
        self.batch = Batch()
        self.unread = 0
        """Tokens gathered and not taken; the owner bounds it."""

    def add(self, number: int, tokens: list[int]) -> None:
        """New tokens of a sequence. The list becomes the outbox's own."""
        known = self.batch.tokens.get(number)
        if known is None:
            self.batch.tokens[number] = tokens
        else:
            known.extend(tokens)
        self.unread += len(tokens)

    def add_first(self, number: int, cached: int, after: float, numerics: str) -> None:
        """A sequence has its first token, `after` seconds after its submission."""
        self.batch.first.append((number, cached, after, numerics))

    def add_logprobs(self, number: int, entries: list[TokenLogprob]) -> None:
        """Log-probabilities of tokens just added."""
        self.batch.logprobs.setdefault(number, []).extend(entries)

    def finish(self, number: int, reason: FinishReason, message: str) -> None:
        """A sequence ended; its last tokens, if any, were added before."""
        self.batch.finished.append((number, reason, message))

    def take(self) -> Batch:
        """Everything gathered so far; the outbox is empty afterwards."""
        batch, self.batch, self.unread = self.batch, Batch(), 0
        return batch
