"""Executes scheduled chunks on one model: builds the batch, runs the forward pass, samples."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.attention import (
    Attention,
    AttentionShape,
    Segment,
    build_attention,
)
from services.worker.engines.torch_engine.model import Adapting, Attend, Decoder
from services.worker.engines.torch_engine.sampler import Sampled, SequenceSampler, sample
from services.worker.engines.torch_engine.sequences import Chunk

_log = logging.getLogger(__name__)

SELF_TEST_TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 1e-1}
"""How far the logits of the two ways to compute the same tokens may lie apart, relative to the largest."""


@dataclass(slots=True)
class Timings:
    """Seconds spent so far on building batches, in the forward pass, and on choosing tokens."""

    prepare: float = 0.0
    forward: float = 0.0
    sample: float = 0.0


class ModelRunner:
    """One loaded model and its place in the arena. `rows` sequences may run at once."""

    def __init__(self, model: Decoder, arena: Tensor, *, block_size: int, rows: int) -> None:
        """`arena` (blocks, numbers per block) is contiguous and of the model's dtype."""
        self.model = model
        self.config = model.config
        self.timings = Timings()
        self._arena = arena
        self._block_size = block_size
        self._attention = _attention(model, arena, block_size)
        most_blocks = min(-(-self.config.context // block_size), len(arena))
        self._tables = np.zeros((rows, most_blocks), dtype=np.int32)
        self._written: list[tuple[int, int] | None] = [None] * rows
        self.numerics = ""
        """See `EngineInfo.numerics`; empty before the self-test and where a row's bits depend on its batch."""

    @property
    def arena(self) -> Tensor:
        """The memory of keys and values that it works on."""
        return self._arena

    def move_to(self, arena: Tensor) -> None:
        """Work on a wider arena from now on, into which the content of the present one was copied."""
        self._arena = arena
        self._attention = _attention(self.model, arena, self._block_size)

    def execute(
        self, chunks: Sequence[Chunk], samplers: Mapping[int, SequenceSampler], adapting: Adapting | None = None
    ) -> list[Sampled | None]:
        """Compute `chunks` (not empty) in the order given; returns what was sampled after each, None where nothing was
        wanted. `samplers` are by handle."""
        began = time.perf_counter()
        tokens, positions, segments = self._batch(chunks)
        plan = self._attention.plan(self._tables, segments)
        prepared = time.perf_counter()
        hidden = self.model.hidden(tokens, positions, self._attend(plan, self._arena), adapting)
        results: list[Sampled | None] = [None] * len(chunks)
        wanted = [index for index, chunk in enumerate(chunks) if chunk.samples]
        logits = self._logits(hidden, chunks, wanted)
        computed = time.perf_counter()
        if logits is not None:
            drawn = sample(
                logits,
                [samplers[chunks[index].sequence.request.handle] for index in wanted],
                [chunks[index].start + chunks[index].count for index in wanted],
            )
            for index, each in zip(wanted, drawn, strict=True):
                results[index] = each
        if not torch.isfinite(hidden.sum()):
            for index in _broken(hidden, chunks):
                results[index] = Sampled(None, None)
        self.timings.prepare += prepared - began
        self.timings.forward += computed - prepared
        self.timings.sample += time.perf_counter() - computed
        return results

    def embed(
        self, prompt: Sequence[int], most: Callable[[], int], adapt: Callable[[int], Adapting | None]
    ) -> Generator[bool, None, list[float]]:
        """Mean over the tokens of the last hidden states, scaled to length 1; see `SyncEngine.embed`.

        Each piece has `most()` tokens, for which `adapt(tokens)` gives the adapter. Keys and values are in memory of
        their own, for as long as it runs.

        :raises ValueError: the prompt is empty, too long or holds an unknown token id.
        """
        if not 0 < len(prompt) <= self.config.context:
            raise ValueError(f"a prompt to embed must have 1 to {self.config.context} tokens, not {len(prompt)}")
        if min(prompt) < 0 or max(prompt) >= self.config.vocabulary:
            raise ValueError(f"a prompt to embed holds a token id outside 0 … {self.config.vocabulary - 1}")
        self.model.reach(len(prompt))
        with torch.inference_mode():
            attend = self._scratch(blocks=-(-len(prompt) // self._block_size))
            total = torch.zeros(self.config.width, device=self.model.device)
        at = 0
        while True:
            piece = prompt[at : at + most()]
            with torch.inference_mode():  # not across a `yield`, where others compute
                positions = torch.arange(at, at + len(piece), device=self.model.device)
                attention = attend([Segment(0, at, len(piece))])
                hidden = self.model.hidden(self._tensor(list(piece)), positions, attention, adapt(len(piece)))
                total += hidden.float().sum(dim=0)
            at += len(piece)
            if at == len(prompt):
                return functional.normalize(total, dim=0).tolist()
            yield True

    def self_test(self, name: str) -> None:
        """Compute the same few tokens as one prompt, one by one and as two chunks, across a block border; all must
        agree, and where all have the same bits, these are its `numerics`. Each pass has fresh memory of its own, so
        that it reads no keys and values but those that it stored.

        :raises EngineLoadError: they do not, or the numbers are not finite.
        """
        count = min(self._block_size + 3, self.config.context)
        self.model.reach(count)
        whole = self._logits_in_chunks([count])
        same = True
        for way, lengths in (("decode", [1] * count), ("chunks", [count // 2, count - count // 2])):
            found = self._logits_in_chunks(lengths)
            same = same and torch.equal(found, whole)
            difference = ((whole - found).abs().max() / whole.abs().max().clamp(min=1e-6)).item()
            if not difference < SELF_TEST_TOLERANCE[self.model.dtype]:
                raise EngineLoadError(f"{name}: self-test failed, prompt and {way} differ by {difference:.3g}")
        if not same:
            _log.warning("%s: bits depend on what else is in a batch; moves of streams are flagged", name)
        self.numerics = hashlib.sha256(whole.cpu().numpy().tobytes()).hexdigest()[:8] if same else ""

    def _logits_in_chunks(self, lengths: Sequence[int]) -> Tensor:
        """The logits of some tokens, (sum of lengths, vocabulary), computed a chunk at a time in fresh memory."""
        model, attend = self.model, self._scratch(blocks=2)
        hidden, at = list[Tensor](), 0
        for length in filter(None, lengths):
            tokens = self._tensor([(31 * index + 7) % self.config.vocabulary for index in range(at, at + length)])
            positions = torch.arange(at, at + length, device=model.device)
            hidden.append(model.hidden(tokens, positions, attend([Segment(0, at, length)])))
            at += length
        return model.logits(torch.cat(hidden))

    def warm_up(self, *, prompt_tokens: int) -> None:
        """Run the shapes that will be met: one and all rows decoding, and a prompt chunk of `prompt_tokens`."""
        model, rows = self.model, len(self._written)
        prompt_tokens = min(prompt_tokens, self.config.context)
        attend = self._scratch(blocks=-(-max(prompt_tokens, rows) // self._block_size))
        for segments in ([Segment(0, 0, prompt_tokens)], [Segment(0, 0)], [Segment(0, at) for at in range(rows)]):
            tokens = self._tensor([0] * sum(segment.count for segment in segments))
            model.logits(model.hidden(tokens, tokens, attend(segments))[-len(segments) :])

    def _scratch(self, *, blocks: int) -> Callable[[list[Segment]], Attend]:
        """Attention over memory of one sequence that is forgotten afterwards."""
        model = self.model
        arena = torch.zeros((blocks, self._arena.shape[1]), dtype=model.dtype, device=model.device)
        tables = np.arange(blocks, dtype=np.int32)[None, :]
        return lambda segments: self._attend(self._attention.plan(tables, segments), arena)

    def _batch(self, chunks: Sequence[Chunk]) -> tuple[Tensor, Tensor, list[Segment]]:
        """Tokens (n,), positions (n,) and whose they are; brings the block tables up to date."""
        tokens: list[int] = []
        positions: list[int] = []
        segments = []
        for chunk in chunks:
            sequence, start, count = chunk.sequence, chunk.start, chunk.count
            self._update_table(chunk)
            if count == 1:
                tokens.append(sequence.tokens[start])
                positions.append(start)
            else:
                tokens += sequence.tokens[start : start + count]
                positions += range(start, start + count)
            segments.append(Segment(sequence.row, start, count))
        return self._tensor(tokens), self._tensor(positions), segments

    def _update_table(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        written = (sequence.arrival, sequence.version)
        if self._written[sequence.row] != written:
            # Before them lies what no layer sees: it is not read.
            self._tables[sequence.row, sequence.slid : sequence.slid + len(sequence.blocks)] = sequence.blocks
            self._written[sequence.row] = written

    def _attend(self, plan: object, arena: Tensor) -> Attend:
        attention = self._attention
        return lambda layer, query, key, value: attention.attend(plan, layer, query, key, value, arena)

    def _logits(self, hidden: Tensor, chunks: Sequence[Chunk], wanted: Sequence[int]) -> Tensor | None:
        if not wanted:
            return None
        if len(wanted) == len(hidden):
            return self.model.logits(hidden)
        ends = np.cumsum([chunk.count for chunk in chunks]) - 1
        return self.model.logits(hidden[self._tensor(ends[wanted].tolist())])

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, device=self.model.device)


def _attention(model: Decoder, arena: Tensor, block_size: int) -> Attention:
    config = model.config
    shape = AttentionShape(
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_width=config.head_width,
        layers=config.layers,
        block_size=block_size,
        dtype=model.dtype,
        stride=arena.shape[1],
        scale=config.query_scale,
        cap=config.attention_cap,
        windows=config.windows,
    )
    return build_attention(shape, model.device)


def _broken(hidden: Tensor, chunks: Sequence[Chunk]) -> list[int]:
    """The chunks any of whose hidden states is not finite."""
    parts = torch.isfinite(hidden).all(dim=-1).split([chunk.count for chunk in chunks])
    return [index for index, part in enumerate(parts) if not part.all()]
