"""How many prompt tokens a step may compute so that decoding sequences wait no longer than a target. Pure.

It learns from measured steps what a step that only decodes costs and how fast prompt tokens are computed; the rest of
the target is spent on prompts (the "stall-free" batching of Sarathi-Serve, with the budget measured instead of set).
"""

from __future__ import annotations

from services.worker.engines.step_rates import StepRates


class Pacer:
    """`target` in seconds bounds a step in which sequences decode; 0 leaves steps to the token budget alone.
    A prompt gets at least `least` tokens per step: it is not starved by a target that cannot be met."""

    def __init__(self, *, target: float, least: int) -> None:
        self._target = target
        self._least = least
        self._rates = StepRates()

    @property
    def decode_seconds(self) -> float:
        """See `StepRates`."""
        return self._rates.decode_seconds

    @property
    def prompt_tokens_per_second(self) -> float:
        """See `StepRates`."""
        return self._rates.prompt_tokens_per_second

    def prompt_tokens(self) -> int | None:
        """The bound for the next step in which others decode; None while nothing is known or no target is set."""
        rates = self._rates
        if not self._target or not rates.prompt_token_seconds:
            return None
        left = self._target - rates.decode_seconds
        return max(self._least, int(left / rates.prompt_token_seconds))

    def observe(self, *, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step that advanced `decodes` sequences and computed `prompt_tokens`."""
        self._rates.observe(decodes=decodes, prompt_tokens=prompt_tokens, seconds=seconds)
