"""Why a generation goes from one grant to another, and what each grant has brought."""

from __future__ import annotations

import enum


class Moving(enum.Enum):
    """Why a request looks for another worker."""

    LOST = "lost"
    """The stream to the worker broke: its fault."""
    REFUSED = "refused"
    """The worker did not take the grant: nobody's fault."""
    ABSENT = "absent"
    """The worker does not have the version any more, which admission has not heard yet: nobody's fault."""
    PREEMPTED = "preempted"
    """Interrupted for a more urgent request; may happen again and again."""
    TAKEN_OUT = "taken_out"
    """Its arm of a rollout is out of force: it goes on with another version."""

    @property
    def counted(self) -> bool:
        """It must not happen again and again."""
        return self in (Moving.LOST, Moving.REFUSED, Moving.ABSENT)

    @property
    def shuns(self) -> bool:
        """The worker that it was on is of no more use to it."""
        return self in (Moving.LOST, Moving.ABSENT)


class Leg:
    """What one grant has brought: from its submission to the release that ends it."""

    __slots__ = ("cached_prompt_tokens", "first_token", "tokens_before")

    def __init__(self, tokens_before: int) -> None:
        self.tokens_before = tokens_before
        self.first_token: float | None = None  # seconds after the submission
        self.cached_prompt_tokens = 0
