"""What a calibration runs: designed workloads that make each cost visible, and a mixed one that judges the result."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_BATCHES = (1, 2, 4, 8, 16, 32)
_CONTEXTS = (16, 128, 512)
_PROMPTS = (16, 32, 64, 128, 256, 512)
_DECODE_STEPS = 6
_MOST_TOKENS = 4096  # prompts of one workload, summed: all that a small machine prefills in a few seconds


class Asked(NamedTuple):
    """One sequence of a workload."""

    at: float  # when it arrives: in steps in a designed workload, in seconds in the mixed one
    prompt: int  # tokens
    output: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the engine allows."""

    max_running: int
    max_context: int

    def fits(self, asked: Asked) -> bool:
        """Whether the engine takes it."""
        return asked.prompt + asked.output <= self.max_context


def decoding(bounds: Bounds, max_step_tokens: int) -> Iterator[list[Asked]]:
    """Batches of each size over contexts of each length: costs per sequence and per token attended to. Then batches of
    uneven contexts: what the short ones pay for the long one."""
    even = [[context] * batch for context in _CONTEXTS for batch in _BATCHES]
    uneven = [[long] + [16] * (batch - 1) for long in _CONTEXTS[1:] for batch in _BATCHES[1:]]
    spread = [[32 * (1 + index % 8) for index in range(batch)] for batch in _BATCHES[1:]]
    for prompts in even + uneven + spread:
        if len(prompts) <= bounds.max_running and sum(prompts) <= _MOST_TOKENS:
            # The first to decode goes on until the last has been prefilled, so that all of them meet.
            joining = sum(prompts) // max(1, max_step_tokens - len(prompts)) + 1
            yield from _if_fit([Asked(0, prompt, joining + _DECODE_STEPS) for prompt in prompts], bounds)


def prefilling(bounds: Bounds, max_step_tokens: int) -> Iterator[list[Asked]]:
    """Prompts that are one chunk, one that is several (its later chunks attend to the earlier ones and its last is
    short), and several prompts in one step."""
    for size in _PROMPTS:
        if size <= max_step_tokens:
            yield from _if_fit([Asked(0, size, 1)], bounds)
    for size in (2 * max_step_tokens + max_step_tokens // 4, 3 * max_step_tokens + 16):
        yield from _if_fit([Asked(0, size, 1)], bounds)
    for count in (2, 4, 8):
        if count <= bounds.max_running:
            yield from _if_fit([Asked(0, max_step_tokens // count, 1)] * count, bounds)


def joining(bounds: Bounds) -> Iterator[list[Asked]]:
    """Prompts that arrive while others decode."""
    for batch in (2, 8, 24):
        for size in (48, 192):
            if batch < bounds.max_running:
                yield from _if_fit([*[Asked(0, 32, 10)] * batch, Asked(4, size, 3), Asked(6, size // 2, 3)], bounds)


def mixed(bounds: Bounds, *, count: int, span: float, seed: int) -> list[Asked]:
    """Chat-like requests, long-tailed prompts and outputs, arriving at random over `span` seconds."""
    rng = random.Random(seed)
    longest = bounds.max_context // 2

    def size(median: float, sigma: float, most: int) -> int:
        return max(4, min(most, longest, round(median * rng.lognormvariate(0.0, sigma))))

    drawn = [(size(96, 0.8, 384), size(32, 0.6, 96)) for _ in range(count)]
    return sorted(Asked(rng.uniform(0, span), prompt, output) for prompt, output in drawn)


def _if_fit(workload: list[Asked], bounds: Bounds) -> Iterator[list[Asked]]:
    if all(bounds.fits(asked) for asked in workload):
        yield workload
