"""Chooses the next token of each sequence of a batch from its logits.

The order is: logit bias, penalties, bans, structure, temperature, top-k, top-p, min-p, draw. A sequence draws with a
number computed from its seed and the position of the token alone, so its tokens depend neither on what else is in the
batch nor on how often it was interrupted and taken up again, here or by another worker.

Everything is done for the whole batch at once, on the device of the logits; a call reads its results back from there
once. (A CPU's numpy finds a largest element ten times as fast as its torch, so there it does.)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.worker.engines.port import GREEDY_BELOW, SamplingParams, TokenLogprob
from services.worker.engines.torch_engine import filters
from services.worker.engines.torch_engine.bans import Bans, bar
from services.worker.engines.torch_engine.penalties import Tally, bias, penalise
from services.worker.engines.torch_engine.structure import Matcher, accept, allowed

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
    """A row's choice.

    `token` is None when there is none; `error` then says why, fit for the caller, or is empty where the model produced
    no finite logits. `ends` is set when the output's
    structure is complete: the sequence ends with STOP, whatever its `ignore_eos` says, and the token belongs to the
    output unless it is an end of sequence.
    """

    token: int | None
    logprob: TokenLogprob | None
    ends: bool = False
    error: str = ""


@dataclass(slots=True, eq=False)
class SequenceSampler:
    """What sampling must remember of one sequence. It lives as long as the sequence, through preemptions."""

    params: SamplingParams
    seed: int
    matcher: Matcher | None
    tally: Tally | None
    greedy: bool
    bans: Bans | None = None
    plain: bool = False
    """The most likely token, and nothing else, is asked for."""

    def __post_init__(self) -> None:
        self._settle()

    def _settle(self) -> None:
        unread = self.tally is None and self.matcher is None and self.bans is None and self.params.logprobs is None
        self.plain = self.greedy and unread and not self.params.logit_bias

    @classmethod
    def create(
        cls,
        params: SamplingParams,
        prompt: Sequence[int],
        seed: int,
        *,
        matcher: Matcher | None = None,
        resumed: int = 0,
        ends: Collection[int] = (),
    ) -> SequenceSampler:
        """The state at the start of a sequence. `matcher`, a fresh one, is for `params.structure`. The last `resumed`
        tokens of the prompt were generated before and count as output, for penalties, bad words and structure. `ends`
        are the tokens that end it.

        :raises StructureError: the structure does not allow the resumed tokens.
        """
        output = list(prompt[len(prompt) - resumed :]) if resumed else []
        if matcher is not None and output:
            matcher.replay(output)
        greedy = params.temperature < GREEDY_BELOW or params.top_k == 1
        tally = Tally.create(params, prompt, output)
        return cls(params, seed, matcher, tally, greedy, Bans.create(params, output, ends))

    def add(self, token: int) -> None:
        """Note a token of the output."""
        if self.tally is not None:
            self.tally.add(token)
        if self.bans is not None:
            self.bans.add(token)
            if self.bans.over:
                self.bans = None
                self._settle()


def sample(logits: Tensor, samplers: Sequence[SequenceSampler], positions: Sequence[int]) -> list[Sampled]:
    """Choose a token per row of `logits` (n, vocabulary; n at least 1); `positions[i]` is the place of the chosen token
    in its sequence. Log-probabilities are of the model's own distribution, before bias, penalties and temperature.

    The logits may be changed in place. A chosen token is noted in its sampler. A row without usable numbers, or whose
    structure cannot go on, has no token and touches no other row.
    """
    # The host computes masks while the device may still be busy with the forward pass.
    bound = [row for row, each in enumerate(samplers) if each.matcher is not None]
    bits = allowed([m for each in samplers if (m := each.matcher) is not None]) if bound else None
    logits = logits.float().contiguous()
    # One infinite or undefined number makes the sum so, too.
    usable = torch.isfinite(logits.sum(dim=-1))
    if all(each.plain for each in samplers):
        tokens = torch.where(usable, _best(logits), -1).tolist()
        return [Sampled(token, None) if token >= 0 else Sampled(None, None) for token in tokens]

    reported = [row for row, each in enumerate(samplers) if each.params.logprobs is not None]
    own = torch.log_softmax(filters.rows_of(logits, reported), dim=-1) if reported else None
    bias(logits, [each.params.logit_bias for each in samplers])
    penalise(logits, [each.tally for each in samplers])
    bar(logits, [each.bans for each in samplers])
    if bits is not None:
        _forbid(logits, bound, bits)
    chosen = _choose(logits, samplers, positions, usable)
    logprobs = _logprobs(own, chosen, samplers, reported) if own is not None else None
    tokens, read = _read(torch.where(usable, chosen, -1), logprobs)
    entries = _entries(read, samplers, reported)
    if bound:
        _follow(samplers, bound, tokens)
    return [
        _result(each, token, entries.get(row)) for row, (each, token) in enumerate(zip(samplers, tokens, strict=True))
    ]


def _best(logits: Tensor) -> Tensor:
    """The most likely token of each row, the first of several; of NaN, any."""
    if logits.is_cuda:
        return logits.argmax(dim=-1)
    return torch.from_numpy(logits.numpy().argmax(axis=-1))


def _exp(values: Tensor) -> Tensor:
    """In place."""
    if values.is_cuda:
        return values.exp_()
    array = values.numpy()
    np.exp(array, out=array)
    return values


def _choose(logits: Tensor, samplers: Sequence[SequenceSampler], positions: Sequence[int], usable: Tensor) -> Tensor:
    """A token id per row, (n); arbitrary in rows that are not usable."""
    drawn = [row for row, each in enumerate(samplers) if not each.greedy]
    if not drawn:
        return _best(logits)
    params = [samplers[row].params for row in drawn]
    numbers = [
        (1.0 / each.temperature, uniform(samplers[row].seed, positions[row]))
        for row, each in zip(drawn, params, strict=True)
    ]
    scale, number = torch.tensor(numbers, dtype=torch.float64).to(logits.device).unbind(dim=1)
    rows = filters.rows_of(logits, drawn)
    # In place: new memory of this size costs more than the arithmetic. Shifted by the maximum first: a small
    # temperature must not overflow, and the largest weight becomes 1.
    weights = _exp(rows.sub_(rows.amax(dim=-1, keepdim=True)).mul_(scale.float().unsqueeze(1)))
    if any(each.top_k > 0 or each.top_p < 1.0 or each.min_p > 0.0 for each in params):
        if not weights.is_cuda and not usable.all():
            weights[~filters.rows_of(usable, drawn)] = 0.0
        least = filters.floors(
            weights, [each.top_k for each in params], [each.top_p for each in params], [each.min_p for each in params]
        )
        filters.cut(weights, least)
    picked = filters.pick(weights, number)
    if len(drawn) == len(samplers):
        return picked
    # The other rows are as they were: what was drawn from was a copy.
    return _best(logits).index_copy_(0, torch.tensor(drawn, device=logits.device), picked)


def _forbid(logits: Tensor, rows: Sequence[int], bits: np.ndarray) -> None:
    """Put -inf where the bit of a token is not set."""
    size = logits.shape[1]
    table = torch.from_numpy(_FORBIDDEN).to(logits.device)
    barred = table[torch.from_numpy(bits).to(logits.device).int()].flatten(1)[:, :size]
    if len(rows) == len(logits):
        logits += barred
    else:
        logits[rows] += barred


_FORBIDDEN = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0.0, -np.inf
).astype(np.float32)
"""By byte: what its eight tokens' logits are raised by."""


def _follow(samplers: Sequence[SequenceSampler], rows: Sequence[int], tokens: Sequence[int]) -> None:
    """Tell the matchers what was chosen."""
    pairs = [(m, tokens[row]) for row in rows if (m := samplers[row].matcher) is not None and tokens[row] >= 0]
    if pairs:
        accept([matcher for matcher, _ in pairs], [token for _, token in pairs])


def _result(sampler: SequenceSampler, token: int, logprob: TokenLogprob | None) -> Sampled:
    if token < 0:
        return Sampled(None, None)
    matcher = sampler.matcher
    if matcher is None:
        sampler.add(token)
        return Sampled(token, logprob)
    if error := matcher.error:
        return Sampled(None, None, error=f"the structured output cannot go on: {error}")
    sampler.add(token)
    return Sampled(token, logprob, ends=matcher.complete)


def _logprobs(own: Tensor, chosen: Tensor, samplers: Sequence[SequenceSampler], rows: Sequence[int]) -> Tensor:
    """(rows, 1 + 2m) float64: the chosen token's log-probability, the m best ones, and their ids."""
    most = min(max(samplers[row].params.logprobs or 0 for row in rows), own.shape[1])
    token = filters.rows_of(chosen, rows).unsqueeze(1)
    values, ids = own.topk(most) if most else (own[:, :0], token[:, :0])
    return torch.cat([own.gather(1, token).double(), values.double(), ids.double()], dim=1)


def _read(tokens: Tensor, logprobs: Tensor | None) -> tuple[list[int], list[list[float]]]:
    """Both, from the device at once."""
    if logprobs is None:
        return tokens.tolist(), []
    if not tokens.is_cuda:
        return tokens.tolist(), logprobs.tolist()
    both = torch.cat([tokens.double(), logprobs.flatten()]).cpu()
    return both[: len(tokens)].long().tolist(), both[len(tokens) :].reshape(logprobs.shape).tolist()


def _entries(
    read: Sequence[Sequence[float]], samplers: Sequence[SequenceSampler], rows: Sequence[int]
) -> dict[int, TokenLogprob]:
    entries = {}
    for row, (logprob, *best) in zip(rows, read, strict=True):
        most = len(best) // 2
        count = samplers[row].params.logprobs or 0
        top = list(zip(map(int, best[most : most + count]), best[:count], strict=True))
        entries[row] = TokenLogprob(logprob=logprob, top=top)
    return entries
