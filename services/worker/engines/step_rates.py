"""What steps cost, as an engine learns from its own: a step that only decodes, and prompt tokens per second. Pure."""

from __future__ import annotations

_WEIGHT = 0.1
"""Of the newest measurement in the running means: about the last ten count."""


class StepRates:
    """Running means over measured steps."""

    def __init__(self) -> None:
        self.decode_seconds = 0.0
        """Smoothed duration of a step that only decodes; 0 before the first."""
        self.prompt_token_seconds = 0.0
        """Smoothed time that a prompt token takes beyond what its step's decoding takes; 0 while nothing is known."""

    @property
    def prompt_tokens_per_second(self) -> float:
        """Smoothed rate at which prompt tokens are computed; 0 while nothing is known."""
        return 1.0 / self.prompt_token_seconds if self.prompt_token_seconds else 0.0

    def observe(self, *, decodes: int, prompt_tokens: int, seconds: float, steps: int = 1) -> None:
        """Learn from steps (equal ones, `seconds` in all) that each advanced `decodes` sequences and computed
        `prompt_tokens`."""
        each = seconds / steps
        if not prompt_tokens:
            if decodes:
                self.decode_seconds = _smooth(self.decode_seconds, each, steps)
            return
        # Times are smoothed, not rates: a step whose decoding was quicker than usual would claim an absurd rate.
        share = max(0.0, each - (self.decode_seconds if decodes else 0.0))
        self.prompt_token_seconds = _smooth(self.prompt_token_seconds, share / prompt_tokens, steps)


def _smooth(mean: float, value: float, times: int) -> float:
    return value if not mean else mean + (1.0 - (1.0 - _WEIGHT) ** times) * (value - mean)
