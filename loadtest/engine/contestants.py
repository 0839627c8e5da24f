"""Who takes part, and how each is started."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.engine.checkpoints import COMMON
from loadtest.engine.child import REPOSITORY, THREADS, Contestant

RUNNING = 64
"""Sequences that may run at once, for contestants that have such a limit."""
TOTAL_BLOCKS = {"t": 2560}
"""KV blocks of ours, of 16 tokens: room for all of workload B on T; elsewhere for workload A."""
STEP_TOKENS = 512
"""Most tokens that a step of ours computes in the throughput runs."""
VLLM_KV_GIB = 1


def vllm_interpreter() -> Path | None:
    """The Python of vLLM's environment: `VLLM_ENV`, else build/vllm-env; None when there is none."""
    python = Path(os.environ.get("VLLM_ENV") or REPOSITORY / "build" / "vllm-env") / "bin" / "python"
    return python if python.exists() else None


def ours(checkpoint: str, folder: Path, overrides: Mapping[str, Any], *, module: str = "ours") -> Contestant:
    """The torch engine. Another `module` of this package drives it in another way."""
    options = {
        "device": "cpu",
        "max_running": RUNNING,
        "max_step_tokens": STEP_TOKENS,
        "total_blocks": TOTAL_BLOCKS.get(checkpoint, 2048),
        **overrides,
    }
    log = folder.parent / f"{module}-{checkpoint}.log"
    return Contestant(f"loadtest.engine.{module}", str(folder), "--options", json.dumps(options), log=log)


def hf(checkpoint: str, folder: Path) -> Contestant:
    """`transformers` with static batches."""
    return Contestant("loadtest.engine.hf_static", str(folder), log=folder.parent / f"hf-{checkpoint}.log")


def vllm(checkpoint: str, folder: Path) -> Contestant | None:
    """vLLM, or None where it is not installed.

    :raises ContestantError: it is installed and does not start.
    """
    python = vllm_interpreter()
    if python is None:
        return None
    cpus = sorted(os.sched_getaffinity(0))[:THREADS]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(VLLM_KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # measured: its extra process costs it a fifth on two CPUs
        "VLLM_CACHE_ROOT": str(folder.parent / "vllm-cache"),
        "VLLM_NO_USAGE_STATS": "1",
    }
    context = str(COMMON["max_position_embeddings"])
    return Contestant(
        "loadtest.engine.vllm_run",
        *(str(folder), "--context", context, "--running", str(RUNNING)),
        interpreter=str(python),
        environment=environment,
        log=folder.parent / f"vllm-{checkpoint}.log",
    )
