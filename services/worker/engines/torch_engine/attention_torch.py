"""Paged attention in plain torch: gather what a sequence sees, then `scaled_dot_product_attention`.

On a CPU every sequence is gathered and attended to by itself: no padding is read, and a sequence's numbers do not
depend on its company. On a GPU, where launches cost more than padding, all decoding sequences go together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from services.worker.engines.torch_engine.attention import AttentionShape, Segment, Tables


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences of `count` tokens each that attend in one call, none of which sees more than `longest` tokens. `tokens`
    are theirs in the batch; `rows` (2, sequences, kv_heads, longest), flat, are where their keys and values lie in the
    arena's first layer, seen as rows of one head of one token; `mask` is (sequences, 1, group·count, longest) or None.
    """

    tokens: slice
    sequences: int
    count: int
    longest: int
    rows: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class TorchPlan:
    """`written` (2·tokens·kv_heads,) is where new keys and then new values go, in the arena's first layer; `groups` are
    by window."""

    written: Tensor
    groups: Mapping[int, Sequence[_Group]]


class TorchAttention:
    """Implements `Attention` on any device."""

    def __init__(self, shape: AttentionShape, device: torch.device) -> None:
        self._shape = shape
        self._device = device
        self._together = device.type != "cpu"
        self._layer_rows = 2 * shape.kv_heads * shape.block_size
        self._block_rows = shape.apart // shape.head_width
        self._group = shape.heads // shape.kv_heads
        # Distance from a key to its value, and from head to head, in rows.
        apart = torch.arange(2).view(2, 1, 1, 1) * shape.kv_heads + torch.arange(shape.kv_heads).view(1, 1, -1, 1)
        self._apart = apart * shape.block_size

    def plan(self, tables: Tables, segments: Sequence[Segment]) -> TorchPlan:
        """See `Attention.plan`."""
        blocks = torch.from_numpy(tables)
        written = []
        groups: dict[int, list[_Group]] = {window: [] for window in self._shape.windows or (0,)}
        first = 0
        for together in self._batches(segments):
            count = together[0].count
            starts = torch.tensor([segment.start for segment in together])
            rows = blocks[torch.tensor([segment.row for segment in together])]
            fresh = starts.unsqueeze(1) + torch.arange(count)
            written.append(self._rows(rows, fresh).transpose(2, 3).flatten(1))
            for window, own in groups.items():
                own.append(self._grouped(together, first, starts, rows, window))
            first += count * len(together)
        return TorchPlan(torch.cat(written, dim=1).flatten().to(self._device), groups)

    def attend(self, plan: TorchPlan, layer: int, query: Tensor, key: Tensor, value: Tensor, arena: Tensor) -> Tensor:
        """See `Attention.attend`."""
        shape = self._shape
        memory = arena.view(-1, shape.head_width)
        offset = layer * self._layer_rows
        memory.index_copy_(0, plan.written + offset, torch.cat((key, value)).view(-1, shape.head_width))
        parts = []
        for group in plan.groups[shape.window(layer)]:
            gathered = memory.index_select(0, group.rows + offset)
            keys, values = gathered.view(2, group.sequences, shape.kv_heads, group.longest, shape.head_width)
            # The query heads that share a key head attend as if they were successive queries of one head.
            queries = query[group.tokens].reshape(group.sequences, group.count, shape.kv_heads, -1, shape.head_width)
            queries = queries.permute(0, 2, 3, 1, 4).flatten(2, 3)
            attended = self._attended(queries, keys, values, group.mask)
            attended = attended.unflatten(2, (self._group, group.count)).permute(0, 3, 1, 2, 4)
            parts.append(attended.reshape(group.sequences * group.count, -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attended(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        shape, scale = self._shape, self._shape.scale or None
        if not shape.cap:
            return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
        scores = queries @ keys.transpose(-1, -2)
        scores = shape.cap * torch.tanh(scores.float() * ((scale or shape.head_width**-0.5) / shape.cap))
        if mask is not None:
            scores.masked_fill_(~mask, -torch.inf)
        return scores.softmax(dim=-1).to(values.dtype) @ values

    def _batches(self, segments: Sequence[Segment]) -> list[list[Segment]]:
        if not self._together:
            return [[segment] for segment in segments]
        batches: list[list[Segment]] = []
        for segment in segments:
            if segment.count == 1 and batches and batches[-1][0].count == 1:
                batches[-1].append(segment)
            else:
                batches.append([segment])
        return batches

    def _rows(self, blocks: Tensor, positions: Tensor) -> Tensor:
        """Rows of the arena's first layer for `positions` (n, m) of sequences with `blocks` (n, most): (2, n,
        kv_heads, m)."""
        size = self._shape.block_size
        block = blocks.gather(1, positions // size).to(torch.int64)
        return (block * self._block_rows + positions % size).unsqueeze(1) + self._apart

    def _grouped(self, together: Sequence[Segment], first: int, starts: Tensor, blocks: Tensor, window: int) -> _Group:
        count, sequences = together[0].count, len(together)
        begins = (starts - window + 1).clamp(min=0) if window else torch.zeros_like(starts)
        longest = int((starts - begins).max()) + count
        last = starts.unsqueeze(1) + torch.arange(count)
        positions = begins.unsqueeze(1) + torch.arange(longest)
        seen = positions.unsqueeze(1) <= last.unsqueeze(-1)
        if window:
            seen &= positions.unsqueeze(1) > last.unsqueeze(-1) - window
        # Where a shorter sequence has nothing, its own first token is read and masked: a finite number, always.
        positions = torch.where(positions < starts.unsqueeze(1) + count, positions, begins.unsqueeze(1))
        mask = None if bool(seen.all()) else seen.repeat(1, self._group, 1).unsqueeze(1).to(self._device)
        rows = self._rows(blocks, positions).flatten().to(self._device)
        return _Group(slice(first, first + count * sequences), sequences, count, longest, rows, mask)
