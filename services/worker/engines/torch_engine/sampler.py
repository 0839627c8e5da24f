"""Chooses the next token of each sequence of a batch from its logits.

The order is: logit bias, penalties, temperature, top-k, top-p, min-p, draw. A sequence draws with a number computed
from its seed and the position of the token alone, so its tokens depend neither on what else is in the batch nor on
how often it was interrupted and taken up again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.worker.engines.port import SamplingParams, TokenLogprob

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow."""

_FIRST_LOOK = 64
"""How many of the most likely tokens are searched first for the place where the filters cut."""

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments (splitmix64 of both)."""
    return (_mix(_mix(seed & _MASK) + position) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A row's choice; `token` is None when the logits hold no usable numbers."""

    token: int | None
    logprob: TokenLogprob | None


@dataclass(slots=True, eq=False)
class SequenceSampler:
    """What sampling must remember of one sequence. `seen` and `produced` are filled only where penalties need them."""

    params: SamplingParams
    seed: int
    seen: set[int] | None
    produced: Counter[int] | None

    @classmethod
    def create(cls, params: SamplingParams, prompt: Sequence[int], seed: int) -> SequenceSampler:
        """The state at the start of a sequence."""
        repeats = params.repetition_penalty != 1.0
        counts = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        return cls(params, seed, set(prompt) if repeats else None, Counter() if counts else None)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.params.temperature < GREEDY_BELOW or self.params.top_k == 1

    @property
    def filtered(self) -> bool:
        """Whether unlikely tokens are cut off."""
        return self.params.top_k > 0 or self.params.top_p < 1.0 or self.params.min_p > 0.0

    def note(self, token: int) -> None:
        """Remember a token that was chosen."""
        if self.seen is not None:
            self.seen.add(token)
        if self.produced is not None:
            self.produced[token] += 1


def sample(logits: Tensor, samplers: Sequence[SequenceSampler], positions: Sequence[int]) -> list[Sampled]:
    """Choose a token per row of `logits` (n, vocabulary); `positions[i]` is the place of the chosen token in its
    sequence. Log-probabilities are of the model's own distribution, before bias, penalties and temperature.

    The logits may be changed in place. A chosen token is noted in its sampler.
    """
    # One infinite or undefined number makes the sum so, too.
    usable = torch.isfinite(logits.sum(dim=-1)).tolist()
    reported = [row for row, each in enumerate(samplers) if each.params.logprobs is not None and usable[row]]
    own = dict(zip(reported, torch.log_softmax(logits[reported], dim=-1), strict=True)) if reported else {}
    for row, each in enumerate(samplers):
        _bias_and_penalise(logits[row], each)
    drawn = [row for row, each in enumerate(samplers) if not each.greedy and usable[row]]
    tokens = logits.argmax(dim=-1).tolist()
    if drawn:
        chosen = _draw(logits[drawn], [samplers[row] for row in drawn], [positions[row] for row in drawn])
        for row, token in zip(drawn, chosen, strict=True):
            tokens[row] = token
    results = []
    for row, (each, token) in enumerate(zip(samplers, tokens, strict=True)):
        if not usable[row]:
            results.append(Sampled(None, None))
            continue
        each.note(token)
        results.append(Sampled(token, _logprob(own[row], token, each.params.logprobs or 0) if row in own else None))
    return results


def _bias_and_penalise(logits: Tensor, sampler: SequenceSampler) -> None:
    params = sampler.params
    if params.logit_bias:
        logits[list(params.logit_bias)] += torch.tensor(list(params.logit_bias.values()))
    if sampler.seen:
        seen = list(sampler.seen)
        scores = logits[seen]
        penalty = params.repetition_penalty
        logits[seen] = torch.where(scores < 0, scores * penalty, scores / penalty)
    if sampler.produced:
        counts = torch.tensor(list(sampler.produced.values()), dtype=torch.float32)
        logits[list(sampler.produced)] -= counts * params.frequency_penalty + params.presence_penalty


def _draw(logits: Tensor, samplers: Sequence[SequenceSampler], positions: Sequence[int]) -> list[int]:
    """One token id per row by inverse transform over what the filters leave, in the order of token ids."""
    temperatures = torch.tensor([each.params.temperature for each in samplers]).unsqueeze(1)
    # Shifted by the maximum first: a small temperature must not overflow.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperatures
    filtered = [row for row, each in enumerate(samplers) if each.filtered]
    if filtered:
        scaled[filtered] = _filter(scaled[filtered], [samplers[row].params for row in filtered])
    # float64: in float32 the running sum over a large vocabulary loses the small probabilities.
    cumulated = torch.softmax(scaled.double(), dim=-1).cumsum(dim=-1)
    numbers = [uniform(each.seed, position) for each, position in zip(samplers, positions, strict=True)]
    # A draw of u picks the first token whose running sum is above u; one that was cut off adds nothing to the sum.
    totals = cumulated[:, -1:]
    targets = torch.tensor(numbers, dtype=torch.float64).unsqueeze(1) * totals
    targets = torch.minimum(targets, torch.nextafter(totals, torch.zeros_like(totals)))
    return torch.searchsorted(cumulated, targets, right=True).squeeze(1).tolist()


def _filter(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Put -inf where top-k, top-p or min-p cut off. The most likely token always stays."""
    size = scaled.shape[-1]
    top_k = torch.tensor([min(each.top_k or size, size) for each in params]).unsqueeze(1)
    # top_p = 1 means no cut; a threshold of 2 cannot be reached by rounding.
    top_p = torch.tensor([each.top_p if each.top_p < 1.0 else 2.0 for each in params]).unsqueeze(1)
    min_p = torch.tensor([each.min_p for each in params]).unsqueeze(1)
    all_mass = scaled.logsumexp(dim=-1, keepdim=True)
    width = _FIRST_LOOK
    while True:
        # Sorting a whole vocabulary costs more than the model's step; the cut mostly lies among the first few.
        width = min(width, size)
        ordered, order = scaled.topk(width, dim=-1)
        cut = torch.arange(width).unsqueeze(0) >= top_k
        kept_mass = torch.where(top_k <= width, ordered.masked_fill(cut, -torch.inf).logsumexp(-1, True), all_mass)
        probabilities = torch.exp(ordered - kept_mass)
        before = probabilities.cumsum(dim=-1) - probabilities
        cut |= (before >= top_p) | (probabilities < min_p * probabilities[:, :1])
        cut[:, 0] = False
        if width == size or bool(cut[:, -1].all()):
            return torch.full_like(scaled, -torch.inf).scatter_(1, order, ordered.masked_fill(cut, -torch.inf))
        width *= 8


def _logprob(row: Tensor, token: int, count: int) -> TokenLogprob:
    values, ids = row.topk(count)
    return TokenLogprob(logprob=row[token].item(), top=list(zip(ids.tolist(), values.tolist(), strict=True)))
