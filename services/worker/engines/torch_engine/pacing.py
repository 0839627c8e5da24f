"""How many prompt tokens a step may compute so that decoding sequences wait no longer than a target. Pure.

It learns from measured steps what a step that only decodes costs and how fast prompt tokens are computed; the rest of
the target is spent on prompts (the "stall-free" batching of Sarathi-Serve, with the budget measured instead of set).
"""

from __future__ import annotations

_WEIGHT = 0.1
"""Of the newest measurement in the running means."""


class Pacer:
    """`target` in seconds bounds a step in which sequences decode; 0 leaves steps to the token budget alone.
    A prompt gets at least `least` tokens per step: it is not starved by a target that cannot be met."""

    def __init__(self, *, target: float, least: int) -> None:
        self._target = target
        self._least = least
        self.decode_seconds = 0.0
        """Smoothed duration of a step that only decodes; 0 before the first."""
        self._prompt_token_seconds = 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Smoothed rate at which prompt tokens are computed; 0 while nothing is known."""
        return 1.0 / self._prompt_token_seconds if self._prompt_token_seconds else 0.0

    def prompt_tokens(self) -> int | None:
        """The bound for the next step in which others decode; None while nothing is known or no target is set."""
        if not self._target or not self._prompt_token_seconds:
            return None
        left = self._target - self.decode_seconds
        return max(self._least, int(left / self._prompt_token_seconds))

    def observe(self, *, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step that advanced `decodes` sequences and computed `prompt_tokens`."""
        if not prompt_tokens:
            if decodes:
                self.decode_seconds = _smooth(self.decode_seconds, seconds)
            return
        # Times are smoothed, not rates: a step whose decoding was quicker than usual would claim an absurd rate.
        share = max(0.0, seconds - (self.decode_seconds if decodes else 0.0))
        self._prompt_token_seconds = _smooth(self._prompt_token_seconds, share / prompt_tokens)


def _smooth(mean: float, value: float) -> float:
    return value if not mean else mean + _WEIGHT * (value - mean)
