"""Trains one demo model on the corpus and writes its checkpoint."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from models.training import tokenizer as tokenizers_file
from models.training.corpus import Dialogue
from models.training.network import Llama, Shape

logger = logging.getLogger(__name__)

CONTEXT = 1024
VOCABULARY = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of training: `steps` of `batch` windows of `length` tokens."""

    length: int
    batch: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that decides a checkpoint besides the corpus. `rate` is the peak learning rate."""

    name: str
    shape: Shape
    phases: tuple[Phase, ...]
    rate: float
    seed: int

    @property
    def steps(self) -> int:
        """Optimiser steps in all."""
        return sum(phase.steps for phase in self.phases)


RECIPES = {
    "fast": Recipe(
        name="fast",
        shape=Shape(vocabulary=VOCABULARY, width=128, layers=4, heads=4, kv_heads=4, hidden=320, context=CONTEXT),
        phases=(Phase(length=256, batch=16, steps=1300), Phase(length=1024, batch=4, steps=150)),
        rate=4e-3,
        seed=1,
    ),
    "quality": Recipe(
        name="quality",
        shape=Shape(vocabulary=VOCABULARY, width=192, layers=6, heads=6, kv_heads=2, hidden=512, context=CONTEXT),
        phases=(Phase(length=256, batch=8, steps=1500), Phase(length=1024, batch=2, steps=150)),
        rate=3e-3,
        seed=2,
    ),
}


def encode(tokenizer: Tokenizer, dialogues: list[Dialogue]) -> Tensor:
    """Every document's tokens behind one another: a flat tensor of ids."""
    encodings = tokenizer.encode_batch([tokenizers_file.render(each) for each in dialogues], add_special_tokens=False)
    return torch.tensor([token for encoding in encodings for token in encoding.ids], dtype=torch.long)


def train(recipe: Recipe, stream: Tensor, checkpoint: Path) -> Llama:
    """Train by `recipe` on the token `stream`. A checkpoint is written every 200 steps and resumed from."""
    torch.manual_seed(recipe.seed)
    model = Llama(recipe.shape)
    decayed = [each for each in model.parameters() if each.dim() == 2]
    plain = [each for each in model.parameters() if each.dim() != 2]
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=recipe.rate,
        betas=(0.9, 0.95),
        fused=True,
    )
    done = _resume(model, optimiser, checkpoint)
    started, mean = time.monotonic(), float("nan")
    for step, windows in enumerate(_windows(recipe, stream)):
        if step < done:
            continue
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate * _rate_factor(step, recipe.steps)
        loss = _loss(model, windows)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        value = loss.item()
        mean = value if math.isnan(mean) else 0.95 * mean + 0.05 * value
        if step % 25 == 0:
            logger.info(
                "%s step %d/%d loss %.3f, %.0f s", recipe.name, step, recipe.steps, mean, time.monotonic() - started
            )
        if step % 200 == 199:
            torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "done": step + 1}, checkpoint)
    return model.eval()


def held_out_loss(model: Llama, stream: Tensor, windows: int = 32) -> float:
    """Mean loss in nats per token over `windows` windows of unseen text."""
    length = 256
    usable = stream[: windows * (length + 1)].view(windows, length + 1)
    with torch.inference_mode():
        return _loss(model, usable).item()


def save(recipe: Recipe, model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the checkpoint in bfloat16 with its configuration and tokenizer files."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    bos, *eos = (_id(tokenizer, token) for token in (tokenizers_file.BOS, tokenizers_file.EOS, tokenizers_file.END))
    _write(folder / "config.json", recipe.shape.hugging_face_config(bos, eos))
    defaults: dict[str, object] = {"bos_token_id": bos, "eos_token_id": eos, "do_sample": True}
    _write(folder / "generation_config.json", defaults | {"temperature": 0.7, "top_p": 0.95})
    tokenizers_file.save(tokenizer, folder, recipe.shape.context)


def _id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer lacks {token}")
    return found


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _resume(model: Llama, optimiser: torch.optim.Optimizer, checkpoint: Path) -> int:
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(saved["model"])
    optimiser.load_state_dict(saved["optimiser"])
    return saved["done"]


def _windows(recipe: Recipe, stream: Tensor) -> Iterator[Tensor]:
    """Batches of (batch, length + 1) token windows at random places."""
    generator = torch.Generator().manual_seed(recipe.seed)
    for phase in recipe.phases:
        for _ in range(phase.steps):
            starts = torch.randint(0, len(stream) - phase.length - 1, (phase.batch,), generator=generator)
            yield torch.stack([stream[start : start + phase.length + 1] for start in starts.tolist()])


def _loss(model: Llama, windows: Tensor) -> Tensor:
    # bfloat16 products are five times as fast as float32 ones on processors that have them.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def _rate_factor(step: int, steps: int) -> float:
    """Warm up over 60 steps, hold, and fall linearly to nothing over the last 40 %."""
    return min((step + 1) / 60, 1.0, (steps - step) / (0.4 * steps))
