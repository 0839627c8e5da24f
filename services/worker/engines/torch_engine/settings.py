"""What the torch engine loads and how much it may hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSource:
    """A LoRA adapter in PEFT format that is served as a model version of its own, on the weights of `base`."""

    base: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """`models` maps "name@version" to the folder of its checkpoint. The other fields are those of
    `services.worker.config.TorchOptions`, which describes them; sizes in bytes, times in seconds."""

    models: Mapping[str, Path]
    adapters: Mapping[str, AdapterSource] = field(default_factory=dict)
    device: str = "auto"
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    threads: int = 1
    block_size: int = 16
    total_blocks: int = 1024
    kv_bytes: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0
    spill_folder: Path | None = None
    prefix_cache: bool = True
    public_prefixes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tenant_share: float = 1.0
    preemption: Literal["swap", "recompute"] = "swap"
    max_running: int = 32
    max_step_tokens: int = 256
    itl_target: float = 0.0
    max_adapters: int = 8
    weight_bytes: int = 0
    min_residency: float = 10.0
    pinned: Sequence[str] = ()
    standby: Sequence[str] = ()
    weight_cache: Path | None = None
    weight_cache_bytes: int = 10_737_418_240
    require_manifest: bool = True
