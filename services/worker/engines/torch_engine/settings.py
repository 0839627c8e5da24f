"""What the torch engine loads and how much it may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Weights = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSource:
    """A LoRA adapter in PEFT format that is served as a model version of its own, on the weights of `base`."""

    base: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """What to load and how much to hold.

    `models` maps "name@version" to the folder of its checkpoint, `adapters` to a LoRA adapter. All models share one
    arena of KV blocks: `kv_bytes` large, or `total_blocks` when that is 0. `host_bytes` and `disk_bytes` are the tiers
    below it, the latter in a nameless file in `spill_folder`. `max_step_tokens` bounds what one step computes,
    `itl_target` (seconds, 0 is off) how long a step may take while sequences decode. `tenant_share` is the share of the
    blocks that one tenant may hold while others are there. `public_prefixes` are texts with which prompts may begin
    whose memory all tenants share, by model. `threads` are torch's threads for one operation. `require_manifest`
    refuses folders whose manifest.json is missing or does not match.
    """

    models: Mapping[str, Path]
    adapters: Mapping[str, AdapterSource] = field(default_factory=dict)
    weights: Weights = "float32"
    device: str = "auto"
    block_size: int = 16
    total_blocks: int = 1024
    kv_bytes: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0
    spill_folder: Path | None = None
    prefix_cache: bool = True
    public_prefixes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tenant_share: float = 1.0
    preemption: Literal["swap", "recompute"] = "swap"
    max_running: int = 32
    max_step_tokens: int = 256
    itl_target: float = 0.0
    threads: int = 1
    require_manifest: bool = True
