"""What the contestants are given: prompts of random token ids and how many tokens to answer. Pure and seeded.

Lengths depend on the workload alone, so that every repeat has the same work; token ids depend on the repeat too, so
that no prefix cache remembers them from the repeat before.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

REQUESTS = 64
PROMPT_MEDIAN, PROMPT_CAP = 128, 512
OUTPUT_MEDIAN, OUTPUT_CAP = 64, 256
SIGMA = 0.8
"""Of the logarithm of a length: 10% of the prompts are longer than 2.8 medians."""
SHARED_PREFIX = 256
SINGLE_PROMPT, SINGLE_OUTPUT = 128, 128
WARM_UP_REPEAT = 0
"""Repeats that count are numbered from 1."""


@dataclass(frozen=True, slots=True)
class Item:
    """One request: prompt token ids, and the number of tokens to generate greedily, end of sequence ignored."""

    prompt: list[int]
    output: int


def batch(repeat: int, *, vocabulary: int, requests: int = REQUESTS, shared: int = 0) -> list[Item]:
    """Workload A: lognormal lengths, unrelated prompts. With `shared`, workload B: the same behind that many tokens
    that all prompts have in common."""
    lengths = random.Random("lengths")
    tokens = random.Random(f"tokens {repeat} {shared}")
    prefix = ids(tokens, shared, vocabulary)
    items = []
    for _ in range(requests):
        prompt, output = _length(lengths, PROMPT_MEDIAN, PROMPT_CAP), _length(lengths, OUTPUT_MEDIAN, OUTPUT_CAP)
        items.append(Item(prefix + ids(tokens, prompt, vocabulary), output))
    return items


def single(repeat: int, *, vocabulary: int) -> list[Item]:
    """Workload C: one stream."""
    return [Item(ids(random.Random(f"single {repeat}"), SINGLE_PROMPT, vocabulary), SINGLE_OUTPUT)]


def workload(name: str, repeat: int, *, vocabulary: int) -> list[Item]:
    """A workload by its letter.

    :raises ValueError: there is none of that name.
    """
    match name:
        case "a":
            return batch(repeat, vocabulary=vocabulary)
        case "b":
            return batch(repeat, vocabulary=vocabulary, shared=SHARED_PREFIX)
        case "c":
            return single(repeat, vocabulary=vocabulary)
    raise ValueError(f"no workload is called {name!r}")


def ids(rng: random.Random, count: int, vocabulary: int) -> list[int]:
    """Random token ids; the lowest eight, where special tokens lie, are left out."""
    return rng.choices(range(8, vocabulary), k=count)


def to_json(items: Sequence[Item]) -> list[dict[str, Any]]:
    """For an order to a child process."""
    return [asdict(item) for item in items]


def _length(rng: random.Random, median: int, cap: int) -> int:
    return max(1, min(cap, round(rng.lognormvariate(math.log(median), SIGMA))))
