"""Why a generation goes from one grant to another, and what each grant has brought."""

from __future__ import annotations

import enum


class Moving(enum.Enum):
    """Why a request looks for another worker."""

    LOST = "lost"
    """The stream to the worker broke: its fault."""
    REFUSED = "refused"
    """The worker did not take the grant: nobody's fault."""
    PREEMPTED = "preempted"
    """Interrupted for a more urgent request; may happen again and again."""
    TAKEN_OUT = "taken_out"
    """Its arm of a rollout is out of force: it goes on with another version."""


class Leg:
    """What one grant has brought: from its submission to the release that ends it."""

    __slots__ = ("cached_prompt_tokens", "first_token", "tokens_before")

    def __init__(self, tokens_before: int) -> None:
        self.tokens_before = tokens_before
        self.first_token: float | None = None  # seconds after the submission
        self.cached_prompt_tokens = 0
