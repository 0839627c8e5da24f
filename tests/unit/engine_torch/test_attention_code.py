"""Attention kernels from disk: the same numbers to the bit, without numba, and never code that is not whole."""

from __future__ import annotations

import errno
import logging
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from services.worker.engines.torch_engine import attention_code, object_code
from services.worker.engines.torch_engine.attention import AttentionShape, Segment
from services.worker.engines.torch_engine.attention_compiled import CompiledAttention

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() != "x86_64" or find_spec("numba") is None,
    reason="code of other machines is numba's to keep",
)
SHAPE = AttentionShape(heads=4, kv_heads=2, head_width=32, layers=1, block_size=4)
ANSWER = """
import sys, torch
from tests.unit.engine_torch.test_attention_code import answer
torch.set_num_threads(1)
sys.stdout.buffer.write(answer().numpy().tobytes())
sys.exit("numba" in sys.modules)
"""


def answer() -> torch.Tensor:
    """What a prompt and a decoding sequence get."""
    made = torch.Generator().manual_seed(3)
    tables = np.array([[0, 1, 2], [3, 4, 5]], dtype=np.int32)
    arena = torch.randn(6, SHAPE.block_numbers, generator=made)
    attention = CompiledAttention(SHAPE, torch.device("cpu"))
    plan = attention.plan(tables, [Segment(0, 0, 9), Segment(1, 5)])
    query = torch.randn(10, SHAPE.heads, SHAPE.head_width, generator=made)
    key, value = (torch.randn(10, SHAPE.kv_heads, SHAPE.head_width, generator=made) for _ in range(2))
    return attention.attend(plan, 0, query, key, value, arena)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, torch.Tensor]]:
    """What was kept of a kernel, and what it answered when it had just been compiled."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(folder))
        attention_code.load.cache_clear()
        answered = answer()
        [kept] = folder.iterdir()
        yield kept, answered
        attention_code.load.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's kernels are kept; there are none yet."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    attention_code.load.cache_clear()
    return tmp_path / "kept"


def test_what_was_kept_gives_the_same_numbers_and_needs_no_numba(
    folder: Path, compiled: tuple[Path, torch.Tensor]
) -> None:
    kept, answered = compiled
    assert 1_000 < kept.stat().st_size < 200_000
    folder.mkdir()
    shutil.copy(kept, folder)
    assert torch.equal(answer(), answered)
    assert [each.name for each in folder.iterdir()] == [kept.name]
    fresh = subprocess.run([sys.executable, "-c", ANSWER], capture_output=True, check=True)
    assert fresh.stdout == answered.numpy().tobytes()


def test_what_is_not_whole_is_compiled_anew(
    folder: Path, compiled: tuple[Path, torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    kept, answered = compiled
    whole, copy = kept.read_bytes(), folder / kept.name
    folder.mkdir()
    for damaged in (b"", whole[:900] + b"x" + whole[901:], whole[:-1]):
        copy.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            attention_code._read(copy)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(answer(), answered)
    assert "damaged" in caplog.text
    assert attention_code._read(copy).startswith(b"\x7fELF")  # and kept again


def test_a_full_disk_costs_the_kernel_its_cache_and_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, code: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(attention_code, "_write", full)
    assert answer().isfinite().all()
    assert not folder.exists()


def test_another_source_compiler_or_processor_is_another_kernel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (4, 2, 32, 4, False)
    paths = {attention_code._path(shape), attention_code._path((4, 2, 32, 4, True))}
    monkeypatch.setattr(attention_code, "_processor", lambda: "model name : another")
    paths.add(attention_code._path(shape))
    monkeypatch.setattr(attention_code, "version", lambda name: "0.1")
    paths.add(attention_code._path(shape))
    monkeypatch.setattr(attention_code, "_SOURCES", ("attention_kernel.py",))
    paths.add(attention_code._path(shape))
    assert len(paths) == 5
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert attention_code._path(shape) is None


def test_code_that_cannot_be_linked_is_refused_and_says_why(compiled: tuple[Path, torch.Tensor]) -> None:
    code = attention_code._read(compiled[0])
    with pytest.raises(ValueError, match=r"needs .*, which is not there"):
        object_code.link(code, "cfunc.", lambda name: None)
    with pytest.raises(ValueError, match="malformed"):
        object_code.link(code, "nothing.", attention_code._resolve)
    for wrong in (b"", code[:30], b"MZ" + code[2:], code[:18] + b"\xb7\0" + code[20:]):
        with pytest.raises(ValueError, match=r"malformed|this kind of machine"):
            object_code.link(wrong, "cfunc.", attention_code._resolve)
    for size in range(0, len(code), 997):
        with pytest.raises(ValueError, match="object code"):
            object_code.link(code[:size], "cfunc.", attention_code._resolve)
    assert attention_code._resolve("numba_do_raise") == attention_code._resolve("abort")
    assert attention_code._resolve("no_such_function") is None
