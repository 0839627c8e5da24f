"""Tiny random checkpoints and a driver for the synchronous core, shared by the engine's tests."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from libs.clock import ManualClock
from services.worker.engines.port import SamplingParams, SequenceRequest, StepOutput, TokenLogprob
from services.worker.engines.torch_engine import TorchCore, TorchSettings

VOCABULARY = 97
EOS = 2
MODEL = "tiny@1"


ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def save_checkpoint(folder: Path, kind: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """Write a random checkpoint of an architecture with its manifest; returns the transformers model in float32. Norms
    of a kind that is named in full have random weights as well: those that models begin with would hide what is done
    with them."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1,
        "eos_token_id": EOS, "tie_word_embeddings": False, "initializer_range": 0.3,
    }  # fmt: skip
    make_model = getattr(transformers, ARCHITECTURES.get(kind, kind))
    torch.manual_seed(seed)
    model = make_model(make_model.config_class(**(sizes | changes))).eval().float()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
        elif parameter.dim() == 1 and kind not in ARCHITECTURES:
            torch.nn.init.normal_(parameter, parameter.mean().item(), 0.2)
    model.save_pretrained(folder)
    write_manifest(folder)
    return model


def write_manifest(folder: Path, model: str = MODEL) -> None:
    """The manifest of whatever lies in `folder`."""
    name, version = model.split("@")
    files = [
        {"path": each.name, "sha256": hashlib.sha256(each.read_bytes()).hexdigest(), "bytes": each.stat().st_size}
        for each in sorted(folder.iterdir())
        if each.name != "manifest.json"
    ]
    (folder / "manifest.json").write_text(json.dumps({"name": name, "version": version, "files": files}))


def make_core(folders: dict[str, Path], clock: ManualClock | None = None, **changes: Any) -> TorchCore:
    """A loaded core over `folders` by model id."""
    settings = TorchSettings(models=folders, **({"block_size": 4, "total_blocks": 256, "max_running": 16} | changes))
    core = TorchCore(settings, clock=clock or ManualClock(), draw_seed=lambda: 1)
    core.load()
    return core


def embed(core: TorchCore, prompt: Sequence[int], model: str = MODEL) -> tuple[list[float], int]:
    """The vector of a prompt, and in how many pieces it was computed."""
    work, pieces = core.embed(model, prompt), 1
    while True:
        try:
            pieces += next(work)
        except StopIteration as done:
            return done.value, pieces


def request(
    handle: int,
    prompt: Sequence[int],
    *,
    model: str = MODEL,
    deadline: float | None = None,
    priority: int = 0,
    cache_salt: bytes = b"",
    group: int = 0,
    **params: Any,
) -> SequenceRequest:
    """A greedy request of 12 tokens unless told otherwise."""
    return SequenceRequest(
        handle=handle,
        model=model,
        prompt=prompt,
        params=SamplingParams(**({"max_tokens": 12, "temperature": 0.0} | params)),
        deadline=deadline,
        priority=priority,
        cache_salt=cache_salt,
        group=group,
    )


@dataclass
class Collected:
    """Everything a run reported, by handle."""

    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    finish: dict[int, int] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=lambda: defaultdict(list))
    errors: dict[int, str] = field(default_factory=dict)

    def take(self, output: StepOutput) -> None:
        """Add a step, checking the port's promises on the way."""
        assert len(output.handles) == len(set(output.handles)) == len(output.tokens) == len(output.finish)
        for handle, tokens, finish in zip(output.handles, output.tokens, output.finish, strict=True):
            assert handle not in self.finish, "a finished handle appeared again"
            self.tokens[handle] += tokens
            if finish:
                self.finish[handle] = finish
        for handle, entries in output.logprobs.items():
            self.logprobs[handle] += entries
        self.errors |= output.errors


def run(core: TorchCore, requests: Iterable[SequenceRequest] = ()) -> Collected:
    """Add `requests` and step until nothing is left."""
    collected = Collected()
    core.add(list(requests))
    while core.has_work():
        collected.take(core.step())
    return collected


def reference(model: Any, prompt: Sequence[int], max_tokens: int = 12) -> list[int]:
    """What transformers generates greedily, without the end token."""
    with torch.inference_mode():
        ids = model.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
        )[0].tolist()[len(prompt) :]
    return ids[: ids.index(EOS)] if EOS in ids else ids
