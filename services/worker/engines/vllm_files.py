"""What the vLLM adapter checks and reads in model and adapter folders before vLLM starts.

vLLM loads in a process of its own whose errors arrive as "initialization failed"; what is found here is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from libs.versions.ends import ends_of
from libs.versions.manifest import MANIFEST
from services.worker.checkpoint_files import read_object
from services.worker.engines.port import EngineLoadError
from services.worker.model_files import ModelFiles, Seal

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The adapter ranks that vLLM reserves room for; an adapter may have any rank up to the reserved one."""
_ADAPTER_CONFIG, _ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_READ_BY_VLLM = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.bin", "*.pt", "*.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What the adapter needs to know of a model folder."""

    eos: frozenset[int]
    """The ends of sequence of config.json and generation_config.json."""
    has_tokenizer: bool
    seal: Seal = field(default_factory=lambda: Seal({}))
    """The files as they were checked; vLLM reads them by their paths."""


def read_checkpoint(folder: Path, model: str, *, require_manifest: bool) -> Checkpoint:
    """Check a model folder and read what is needed.

    :raises EngineLoadError: a file is missing, malformed, or not what the manifest says; the message names it.
    """
    files = ModelFiles.of(folder, model, required=require_manifest)
    if not any(folder.glob("*.safetensors")):
        raise EngineLoadError(f"{folder}: holds no *.safetensors")
    # Python files are among them: `auto_map` of a config.json names code.
    used = {path.name for pattern in _READ_BY_VLLM for path in folder.glob(pattern)} - {MANIFEST}
    seal = files.seal(sorted(used))
    try:
        eos = frozenset(ends_of(lambda name: files.read_object(name) if name in files else {}))
    except (TypeError, ValueError) as error:
        raise EngineLoadError(f"{folder}: eos_token_id is malformed ({error})") from error
    return Checkpoint(eos=eos, has_tokenizer="tokenizer.json" in files, seal=seal)


def adapter_rank(folders: dict[str, str]) -> int:
    """The rank to reserve for LoRA adapters, by model version to folder (PEFT format).

    :raises EngineLoadError: an adapter_config.json is missing or malformed, or its rank is too large for vLLM.
    """
    largest = 1
    for folder in folders.values():
        path = Path(folder) / _ADAPTER_CONFIG
        rank = read_object(path).get("r")
        if not isinstance(rank, int) or not 1 <= rank <= _RANKS[-1]:
            raise EngineLoadError(f"{path}: r must be a whole number from 1 to {_RANKS[-1]}")
        largest = max(largest, rank)
    return next(rank for rank in _RANKS if rank >= largest)


def check_adapter(folder: Path, model: str, *, require_manifest: bool) -> Seal:
    """Check the folder of a LoRA adapter before vLLM reads it by its paths. vLLM would take pickled weights too.

    :raises EngineLoadError: a file is missing, or not what the manifest says; the message names it.
    """
    if not (folder / _ADAPTER_WEIGHTS).is_file():
        raise EngineLoadError(f"{folder / _ADAPTER_WEIGHTS}: there is no such file")
    return ModelFiles.of(folder, model, required=require_manifest).seal((_ADAPTER_CONFIG, _ADAPTER_WEIGHTS))
