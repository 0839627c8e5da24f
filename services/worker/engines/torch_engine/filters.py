"""Where top-k, top-p and min-p cut a distribution, and the draw from what they leave.

Each filter keeps a token by comparing its weight with a floor, so tokens of equal weight share their fate:

- top-k keeps a token if fewer than k have more weight;
- top-p keeps it if those with more weight hold less than the share p of what top-k left;
- min-p keeps it if it has at least that share of the largest weight.

On a CPU the floors come from counting, not from sorting: the bits of a float from 0 to 1, read as an integer, are in
the order of the floats, so three rounds of up to 4,096 buckets (as in a radix sort) narrow down the one weight at which
the sum reaches what is asked for. For 32 rows of 32,000 that takes a fifth of a sort's time. On a GPU sorting is
quicker.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_DIGITS = ((18, 12), (8, 10), (0, 8))  # (lowest bit, bits) of each round's digit; the bits of 1.0 are below 2**30
_FEW = 128  # so many of the largest are found quicker by a heap than by counting
_CHUNK = 128  # tokens whose weights are summed before the running sum is taken


def floors(weights: Tensor, top_k: Sequence[int], top_p: Sequence[float], min_p: Sequence[float]) -> Tensor:
    """The least weight that stays in each row, (n, 1). `weights` is (n, vocabulary), float32 from 0 to 1 and, on a
    CPU, without NaN; the others have n values: 0 turns off `top_k` and `min_p`, 1 `top_p`."""
    size, device = weights.shape[1], weights.device
    least = weights.amax(dim=-1, keepdim=True) * torch.tensor(min_p, device=device).unsqueeze(1)
    ranked = [row for row, k in enumerate(top_k) if 0 < k < size]
    massed = [row for row, p in enumerate(top_p) if p < 1]
    rank_floor = torch.zeros_like(least)
    if ranked:
        need = torch.tensor([top_k[row] for row in ranked], dtype=torch.float64, device=device)
        rank_floor[ranked] = _reach(rows_of(weights, ranked), need.unsqueeze(1), counted=True)
        least = torch.maximum(least, rank_floor)
    if massed:
        kept = rows_of(weights, massed)
        if ranked:
            kept = cut(kept.clone(), rank_floor[massed])
        share = torch.tensor([top_p[row] for row in massed], dtype=torch.float64, device=device)
        mass_floor = torch.zeros_like(least)
        mass_floor[massed] = _reach(kept, share.unsqueeze(1), counted=False)
        least = torch.maximum(least, mass_floor)
    return least


def cut(weights: Tensor, least: Tensor) -> Tensor:
    """Set to 0, in place, what is below the row's floor (n, 1)."""
    if weights.is_cuda:
        return weights.mul_(weights >= least)
    array, floor = weights.numpy(), least.numpy()
    np.multiply(array, array >= floor, out=array)  # torch takes six times as long to compare on a CPU
    return weights


def pick(weights: Tensor, numbers: Tensor) -> Tensor:
    """One index per row, (n): by inverse transform, in the order of the indices, with `numbers` (n, float64, from 0 to
    below 1). A weight of 0 is never picked. Rows without usable weights give an arbitrary index."""
    size = weights.shape[1]
    whole = size // _CHUNK * _CHUNK
    sums = weights[:, :whole].unflatten(1, (-1, _CHUNK)).sum(dim=-1) if whole else weights[:, :0]
    if whole < size:
        sums = torch.cat([sums, weights[:, whole:].sum(dim=-1, keepdim=True)], dim=1)
    # float64: in float32 the running sum over a large vocabulary loses the small weights.
    chunk, rest = _locate(sums.double(), numbers.unsqueeze(1))
    indices = chunk * _CHUNK + torch.arange(_CHUNK, device=weights.device)
    inside = weights.gather(1, indices.clamp(max=size - 1)).double().masked_fill_(indices >= size, 0.0)
    return (chunk * _CHUNK + _locate(inside, rest)[0]).clamp_(max=size - 1).squeeze(1)


def rows_of(matrix: Tensor, rows: Sequence[int]) -> Tensor:
    """These rows, in ascending order; the matrix itself if they are all of them."""
    return matrix if len(rows) == len(matrix) else matrix[rows]


def _locate(amounts: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Where in each row the running sum of `amounts` (n, m) passes the share (n, 1) of the row's total, and the share
    of that place's own amount at which it does; both (n, 1)."""
    running = amounts.cumsum(dim=-1)
    total = running[:, -1:]
    target = torch.minimum(share * total, torch.nextafter(total, torch.zeros_like(total)))
    # The first running sum above the target; an amount of 0 does not raise it, so it is never the one.
    place = torch.searchsorted(running, target, right=True).clamp_(max=amounts.shape[1] - 1)
    amount = amounts.gather(1, place)
    before = running.gather(1, place) - amount
    return place, ((target - before) / amount).clamp_(0.0, 1.0)


def _reach(weights: Tensor, need: Tensor, *, counted: bool) -> Tensor:
    """Per row the largest weight such that it and all above it are `need` (n, 1) many if `counted`, else hold the share
    `need` of the row's sum; the smallest weight where all together do not. (n, 1)"""
    if weights.is_cuda:
        return _reach_by_sorting(weights, need, counted=counted)
    if counted and (most := int(need.max())) <= _FEW:
        return weights.topk(most).values.gather(1, need.long() - 1)
    return torch.from_numpy(_reach_by_counting(weights.numpy(), need.numpy(), counted=counted))


def _reach_by_sorting(weights: Tensor, need: Tensor, *, counted: bool) -> Tensor:
    ordered = weights.sort(dim=-1, descending=True).values
    amounts = torch.ones_like(ordered, dtype=torch.float64) if counted else ordered.double()
    running = amounts.cumsum(dim=-1)
    place = torch.searchsorted(running, need if counted else need * running[:, -1:])
    return ordered.gather(1, place.clamp_(max=weights.shape[1] - 1))


def _reach_by_counting(
    weights: NDArray[np.float32], need: NDArray[np.float64], *, counted: bool
) -> NDArray[np.float32]:
    count, size = weights.shape
    lines = np.arange(count)
    # What is looked at: at first everything, as a matrix; then what shares its row's leading bits, as a list.
    row: NDArray[np.uint32] = lines.astype(np.uint32)[:, None]
    bits = np.ascontiguousarray(weights).view(np.uint32)
    value = weights
    above = np.zeros((count, 1))
    found = np.zeros(count, dtype=np.uint32)
    for shift, width in _DIGITS:
        digits = (bits >> shift) & ((1 << width) - 1)
        keys = (digits + (row << width)).ravel().view(np.int32)
        # torch adds faster than numpy where many weights are in one bucket, as in a nearly even distribution.
        held = torch.zeros(count << width, dtype=torch.float64)
        amounts = torch.from_numpy(value.ravel()).double() if not counted else torch.ones((), dtype=torch.float64)
        held.index_add_(0, torch.from_numpy(keys), amounts.expand(len(keys)))
        buckets = held.numpy().reshape(count, -1)
        running = buckets[:, ::-1].cumsum(axis=1) + above
        if value.ndim == 2 and not counted:
            need = need * running[:, -1:]
        reached = running >= need
        # Where rounding, or a share of all but 1, leaves the sum short: down to the smallest weight that there is.
        place = np.where(reached[:, -1], reached.argmax(axis=1), (running == running[:, -1:]).argmax(axis=1))
        chosen = buckets.shape[1] - 1 - place
        above = (running[lines, place] - buckets[lines, chosen])[:, None]
        found |= (chosen << shift).astype(np.uint32)
        if value.ndim == 2:
            inside = np.flatnonzero(digits == chosen[:, None].astype(np.uint32))
            row, value, bits = (inside // size).astype(np.uint32), value.ravel()[inside], bits.ravel()[inside]
        else:
            inside = np.flatnonzero(digits == chosen[row])
            row, value, bits = row[inside], value[inside], bits[inside]
    return found.view(np.float32)[:, None]
