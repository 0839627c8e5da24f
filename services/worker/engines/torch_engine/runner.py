"""Executes scheduled chunks on one model: builds the batch, runs the forward pass, samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.config import ModelConfig
from services.worker.engines.torch_engine.kv import ModelKv
from services.worker.engines.torch_engine.model import Batch, LlamaModel, Prompt
from services.worker.engines.torch_engine.sampler import Sampled, SequenceSampler, sample
from services.worker.engines.torch_engine.sequences import Chunk
from services.worker.engines.torch_engine.weights import load_weights

SELF_TEST_TOLERANCE = 1e-2
"""How far the logits of the two ways to compute the same tokens may lie apart, relative to the largest."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Successive tokens of a sequence whose block table is `blocks`, the first at position `start`."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]


class ModelRunner:
    """One loaded model and its keys and values."""

    def __init__(self, config: ModelConfig, model: LlamaModel, kv: ModelKv) -> None:
        self.config = config
        self._model = model
        self._kv = kv

    @classmethod
    def load(cls, folder: Path, config: ModelConfig, kv: ModelKv) -> ModelRunner:
        """Read the checkpoint in `folder`.

        :raises EngineLoadError: a file is missing, corrupted or unsupported.
        """
        try:
            model = LlamaModel(config, load_weights(folder))
        except EngineLoadError as error:
            text = str(error)
            raise EngineLoadError(text if str(folder) in text else f"{folder}/model.safetensors: {text}") from None
        return cls(config, model, kv)

    def execute(
        self, chunks: Sequence[Chunk], samplers: Mapping[int, SequenceSampler]
    ) -> tuple[list[Chunk], list[Sampled | None]]:
        """Compute `chunks` (not empty); returns them in the order computed and what was sampled after each, None where
        nothing was wanted. `samplers` are by handle."""
        ordered = sorted(chunks, key=lambda chunk: chunk.count > 1)
        pieces = [Piece(_tokens(chunk), chunk.start, chunk.sequence.blocks) for chunk in ordered]
        hidden = self._forward(pieces)
        ends = torch.tensor([len(piece.tokens) for piece in pieces]).cumsum(0) - 1
        results: list[Sampled | None] = [None] * len(ordered)
        wanted = [index for index, chunk in enumerate(ordered) if chunk.samples]
        if wanted:
            drawn = sample(
                self._model.logits(hidden[ends[wanted]]),
                [samplers[ordered[index].sequence.request.handle] for index in wanted],
                [ordered[index].start + ordered[index].count for index in wanted],
            )
            for index, each in zip(wanted, drawn, strict=True):
                results[index] = each
        if not torch.isfinite(hidden.sum()):
            for index in _broken(hidden, pieces):
                results[index] = Sampled(None, None)
        return ordered, results

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Mean over the tokens of the last hidden states, scaled to length 1, per prompt.

        :raises ValueError: a prompt is empty, too long or holds an unknown token id.
        """
        vectors = []
        for prompt in prompts:
            if not 0 < len(prompt) <= self.config.context:
                raise ValueError(f"a prompt to embed must have 1 to {self.config.context} tokens, not {len(prompt)}")
            if min(prompt) < 0 or max(prompt) >= self.config.vocabulary:
                raise ValueError(f"a prompt to embed holds a token id outside 0 … {self.config.vocabulary - 1}")
            hidden = self._model.hidden(_unremembered(prompt), None)
            vectors.append(functional.normalize(hidden.mean(dim=0), dim=0).tolist())
        return vectors

    def self_test(self, model: str) -> None:
        """Compute the same few tokens as one prompt and one by one, across a block border; both must agree. It also
        warms up the kernels. Writes into the first blocks, which must be unused.

        :raises EngineLoadError: they do not, or the numbers are not finite.
        """
        size = self._kv.block_size
        count = min(size + 3, self.config.context)
        tokens = [(31 * index + 7) % self.config.vocabulary for index in range(count)]
        blocks = list(range(-(-count // size)))
        whole = self._model.logits(self._forward([Piece(tokens, 0, blocks)]))
        single = torch.cat([self._forward([Piece([token], index, blocks)]) for index, token in enumerate(tokens)])
        stepwise = self._model.logits(single)
        difference = (whole - stepwise).abs().max() / whole.abs().max().clamp(min=1e-6)
        if not difference < SELF_TEST_TOLERANCE:
            raise EngineLoadError(f"{model}: self-test failed, prompt and decode differ by {difference.item():.3g}")

    def _forward(self, pieces: Sequence[Piece]) -> Tensor:
        """Last hidden states (n, width) of all pieces' tokens. Pieces of one token come first."""
        size = self._kv.block_size
        places = [piece.start + offset for piece in pieces for offset in range(len(piece.tokens))]
        positions = torch.tensor(places)
        owners = [piece.blocks for piece in pieces for _ in piece.tokens]
        slots = [blocks[place // size] * size + place % size for blocks, place in zip(owners, places, strict=True)]
        decodes = sum(len(piece.tokens) == 1 for piece in pieces)
        tables = mask = None
        if decodes:
            tables = self._tables(pieces[:decodes])
            visible = torch.arange(tables.shape[1] * size) <= positions[:decodes].unsqueeze(1)
            mask = torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)[:, None, None, :]
        prompts, first = [], decodes
        for piece in pieces[decodes:]:
            table = self._tables([piece]) if piece.start else None
            prompts.append(Prompt(first, len(piece.tokens), piece.start, table))
            first += len(piece.tokens)
        batch = Batch(
            tokens=torch.tensor([token for piece in pieces for token in piece.tokens]),
            positions=positions,
            slots=torch.tensor(slots),
            decodes=decodes,
            tables=tables,
            mask=mask,
            prompts=prompts,
        )
        return self._model.hidden(batch, self._kv)

    def _tables(self, pieces: Sequence[Piece]) -> Tensor:
        """Block tables, padded with the spare block to the longest: (n, blocks)."""
        counts = [-(-(piece.start + len(piece.tokens)) // self._kv.block_size) for piece in pieces]
        longest = max(counts)
        spare = self._kv.spare
        rows = zip(pieces, counts, strict=True)
        return torch.tensor([[*piece.blocks[:count], *[spare] * (longest - count)] for piece, count in rows])


def _tokens(chunk: Chunk) -> list[int]:
    return chunk.sequence.tokens[chunk.start : chunk.start + chunk.count]


def _unremembered(prompt: Sequence[int]) -> Batch:
    return Batch(
        tokens=torch.tensor(list(prompt)),
        positions=torch.arange(len(prompt)),
        slots=None,
        decodes=0,
        tables=None,
        mask=None,
        prompts=[Prompt(0, len(prompt), 0, None)],
    )


def _broken(hidden: Tensor, pieces: Sequence[Piece]) -> list[int]:
    """The pieces any of whose hidden states is not finite."""
    parts = torch.isfinite(hidden).all(dim=-1).split([len(piece.tokens) for piece in pieces])
    return [index for index, part in enumerate(parts) if not part.all()]
