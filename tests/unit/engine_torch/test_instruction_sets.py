"""What a machine with newer instructions would compute with older ones: the laptop's way, on every machine.

Each set runs layers, attention and an oracle in a process of its own, since the libraries look at the processor once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

HERE = Path(__file__).parent
TESTS = {
    "test_instruction_sets.py": "set_was_taken",
    "test_linear.py": "",
    "test_activations.py": "",
    "test_lora.py": "same_bits",
    "test_attention.py": "mixed_step and compiled-4x16",
    "test_families.py": "same_bits and (gemma2 or qwen3)",
    "test_torch_oracle.py": "every_answer and narrow and chunks",
    "test_torch_engine.py": "numbers_are_alike",
}
"""By file, which of its tests (`-k`)."""


class Set(NamedTuple):
    """What oneDNN, torch and numba are told, and a flag of processors that have it."""

    onednn: str
    aten: str
    numba: str
    flag: str


SETS = {
    "sse4.1": Set("SSE41", "default", "nehalem", "sse4_1"),
    "avx2": Set("AVX2", "avx2", "haswell", "avx2"),
    "avx512": Set("AVX512_CORE", "avx512", "skylake-avx512", "avx512bw"),
}


def below() -> list[str]:
    """The two sets next below what this processor has; none on a machine that is no x86-64."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())
    known = [name for name, each in SETS.items() if each.flag in flags]
    return known[-2:] if "avx512_vnni" in flags else known[-3:-1]


@pytest.mark.timeout(600)  # a process that compiles its kernels anew, beside others
@pytest.mark.parametrize("name", SETS)
def test_it_is_as_right_with(name, tmp_path):
    known = SETS[name]
    if name not in below():
        pytest.skip(f"{name} is not next below what this processor has")
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch was built without oneDNN")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "NUMBA_"))},
        "ONEDNN_MAX_CPU_ISA": known.onednn,
        "ATEN_CPU_CAPABILITY": known.aten,
        "NUMBA_CPU_NAME": known.numba,
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "WEIR_CPU_CAPABILITY": known.aten.upper(),
    }
    files = [str(HERE / file) for file in TESTS]
    chosen = " or ".join(f"({file} and ({tests}))" if tests else file for file, tests in TESTS.items())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *files],
        cwd=HERE.parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 90


@pytest.mark.skipif("WEIR_CPU_CAPABILITY" not in os.environ, reason="runs in the processes of the test above")
def test_the_set_was_taken():
    assert torch.backends.cpu.get_cpu_capability() == os.environ["WEIR_CPU_CAPABILITY"]
