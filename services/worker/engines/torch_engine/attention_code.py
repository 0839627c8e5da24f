"""Attention kernels that were compiled before, kept on disk and taken into the process without numba.

A kernel is found by its shape, its source, the compiler's version and the processor. Where it is not, it is compiled
and kept, beside this file or in NUMBA_CACHE_DIR; where nothing can be kept, every start compiles. Whoever may write
there may run code here, as with every compiled module of Python.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import tempfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from services.worker.engines.torch_engine import object_code

_log = logging.getLogger(__name__)
_HERE = Path(__file__).parent
_SOURCES = ("attention_kernel.py", "attention_layout.py", "attention_vectors.py")
_ENTRY = "cfunc."
"""How numba calls what C calls."""
_ERRORS = ("numba_", "NRT_", "Py", "_Py")
"""Beginnings of names that numba's code calls to raise an exception; the kernel has none to raise."""


class Kernel(NamedTuple):
    """A C function of a pointer to a call's arguments (attention_layout.py)."""

    address: int
    owner: object
    """Keeps its code in memory."""


@functools.cache
def load(*shape: Any) -> Kernel:
    """The kernel for one shape (see `attention_kernel.compiled`), from disk if it was compiled before.

    :raises ImportError: it was not, and numba is not there.
    """
    path = _path(shape)
    if path is not None:
        try:
            code = object_code.link(_read(path), _ENTRY, _resolve)
            return Kernel(code.address, code)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            _log.warning("attention's kernel is compiled anew: %s", error)
    from services.worker.engines.torch_engine import attention_kernel

    # Where this does not keep it, numba does.
    made = attention_kernel.compiled(*shape, keep=path is None)
    if path is not None:
        with suppress(OSError):  # no folder to keep it in, or no room there: every start compiles
            _write(path, attention_kernel.object_code_of(made))
    return Kernel(made.address, made)


def _path(shape: tuple[int, ...]) -> Path | None:
    """Where a kernel is kept; None on machines whose code this cannot take in."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return None
    try:
        key = hashlib.sha256(f"{version('numba')} {version('llvmlite')} {_processor()} {shape}".encode())
        for name in _SOURCES:
            key.update((_HERE / name).read_bytes())
    except (OSError, PackageNotFoundError):
        return None
    folder = os.environ.get("NUMBA_CACHE_DIR", "")
    return (Path(folder) if folder else _HERE / "__pycache__") / f"attention.{key.hexdigest()[:32]}.o"


def _processor() -> str:
    """What code is compiled for: the first processor's name and abilities, or those that numba is told to take."""
    told = [os.environ.get(f"NUMBA_CPU_{name}", "") for name in ("NAME", "FEATURES")]
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = file.read().split("\n\n")[0].splitlines()
    return "".join([*told, *(line for line in lines if line.startswith(("model", "flags")))])


def _read(path: Path) -> bytes:
    """:raises ValueError: it was not written to its end."""
    content = path.read_bytes()
    digest, code = content[:32], content[32:]
    if hashlib.sha256(code).digest() != digest:
        raise ValueError(f"{path} is damaged")
    return code


def _write(path: Path, code: bytes) -> None:
    """Whole or not at all: others may read at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(hashlib.sha256(code).digest() + code)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # as Python's own compiled modules
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise


def _resolve(name: str) -> int | None:
    """A function of the C library; what reports errors ends the process instead."""
    if name.startswith(_ERRORS):
        name = "abort"
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    except AttributeError:
        return None
