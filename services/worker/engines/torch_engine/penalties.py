"""Logit bias and penalties of a whole batch: each sequence keeps the few tokens that concern it, and one gather and
one scatter change them for all rows together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.worker.engines.port import SamplingParams


class Tally:
    """How often each token of interest occurs in a sequence's output: with a repetition penalty those of the prompt are
    of interest, too (0 times so far)."""

    __slots__ = ("_counts", "_ids", "_places", "frequency", "presence", "repetition")

    def __init__(self, params: SamplingParams) -> None:
        self.repetition = params.repetition_penalty
        self.presence = params.presence_penalty
        self.frequency = params.frequency_penalty
        self._places: dict[int, int] = {}
        self._ids = np.empty(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float32)

    @classmethod
    def create(cls, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> Tally | None:
        """None without penalties. `output` is what was generated before; it may be part of the prompt."""
        repeats = params.repetition_penalty != 1.0
        if not (repeats or params.presence_penalty or params.frequency_penalty):
            return None
        tally = cls(params)
        if repeats:
            for token in prompt:
                tally._place(token)
        for token in output:
            tally.add(token)
        return tally

    @property
    def ids(self) -> NDArray[np.int64]:
        """The tokens, each once."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each is in the output."""
        return self._counts[: len(self._places)]

    def add(self, token: int) -> None:
        """Count a token of the output."""
        self._counts[self._place(token)] += 1

    def _place(self, token: int) -> int:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._places)
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
        return place


def bias(logits: Tensor, biases: Sequence[Mapping[int, float]]) -> None:
    """Add each row's biases, by token id, to `logits` (n, vocabulary; contiguous)."""
    size = logits.shape[1]
    places = [row * size + token for row, each in enumerate(biases) for token in each]
    if places:
        values = torch.tensor([value for each in biases for value in each.values()], dtype=logits.dtype)
        logits.view(-1).index_add_(0, torch.tensor(places).to(logits.device), values.to(logits.device))


def penalise(logits: Tensor, tallies: Sequence[Tally | None]) -> None:
    """Apply the penalties in place: repetition divides (or, below 0, multiplies) the logits of all tokens seen; then
    presence and frequency are taken off those of the output. `logits` is (n, vocabulary), contiguous."""
    size = logits.shape[1]
    rows = [(row, each) for row, each in enumerate(tallies) if each is not None and len(each.ids)]
    if not rows:
        return
    places = np.concatenate([each.ids + row * size for row, each in rows])
    lengths = [len(each.ids) for _, each in rows]
    counts = np.concatenate([each.counts for _, each in rows])
    repetition = np.repeat(np.array([each.repetition for _, each in rows], dtype=np.float32), lengths)
    frequency = np.repeat(np.array([each.frequency for _, each in rows], dtype=np.float32), lengths)
    presence = np.repeat(np.array([each.presence for _, each in rows], dtype=np.float32), lengths)
    taken = frequency * counts + presence * (counts > 0)
    index = torch.from_numpy(places).to(logits.device)
    numbers = torch.from_numpy(np.stack([repetition, taken])).to(logits.device)
    flat = logits.view(-1)
    scores = flat[index]
    flat[index] = torch.where(scores < 0, scores * numbers[0], scores / numbers[0]) - numbers[1]
