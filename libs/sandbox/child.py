"""The child: takes source, encloses itself, runs the source's `run(inputs)` for each frame. Started by `box.py` alone.

It imports the standard library, NumPy and this package, and what the source imports of `ALLOWED`, before it encloses
itself; after that no file can be opened, so nothing more can be imported.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from libs.sandbox import fences, frames

ALLOWED = frozenset(
    {
        *("__future__", "abc", "array", "base64", "binascii", "bisect", "calendar", "cmath", "collections", "copy"),
        *(
            "dataclasses",
            "datetime",
            "decimal",
            "difflib",
            "enum",
            "fractions",
            "functools",
            "hashlib",
            "heapq",
            "html",
        ),
        *(
            "itertools",
            "json",
            "math",
            "numbers",
            "numpy",
            "operator",
            "random",
            "re",
            "statistics",
            "string",
            "struct",
        ),
        *("textwrap", "time", "types", "typing", "unicodedata", "urllib.parse", "zlib"),
    }
)
"""What source may import, submodules included. No fence: the kernel's are. It is so that a refusal says why."""
_Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


class SourceError(Exception):
    """The source cannot be run; the message says why."""


def imports(source: str) -> list[str]:
    """The modules that source imports, anywhere in it.

    :raises SourceError: it is no Python, or imports what it may not.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SourceError(f"is no Python: {type(error).__name__}") from None
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append("." * node.level + (node.module or ""))
    for name in found:
        if not any(name == each or name.startswith(f"{each}.") for each in ALLOWED):
            raise SourceError(f"may not import {name!r}; it may import {', '.join(sorted(ALLOWED))}")
    return found


def main(channel: int, memory: int) -> None:
    """Serve until the parent is gone."""

    def read(count: int) -> bytes:
        parts, left = [], count
        while left:
            part = os.read(channel, min(left, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def write(frame: bytes) -> None:
        view = memoryview(frame)
        while view:
            view = view[os.write(channel, view) :]

    hello, _ = frames.unpack(read)
    found = fences.available()
    try:
        fences.limit(memory)
        for name in imports(hello["source"]):
            import_module(name)
        json.dumps("\u20ac".encode().decode("utf-8", "replace"))  # codecs are imported when they are first used
        fences.enclose(found)
        run = _exec(hello["source"])
    except SourceError as error:
        write(frames.pack({"fault": str(error)}, {}))
        return
    except BaseException as error:  # of the source's own too
        write(frames.pack({"fault": f"its source fails with {_name(error)} when it is run"}, {}))
        return
    write(frames.pack({"landlock": found.landlock, "seccomp": found.seccomp}, {}))
    while True:
        _, inputs = frames.unpack(read)
        try:
            write(frames.pack({}, dict(run(inputs))))
        except frames.FrameError as error:
            write(frames.pack({"fault": str(error)}, {}))
        except BaseException as error:  # `exit()` of the source ends a run, not the child
            write(frames.pack({"fault": f"raises {_name(error)}"}, {}))


def _exec(source: str) -> _Run:
    names: dict[str, Any] = {"__name__": "step"}
    exec(compile(source, "step", "exec"), names)  # noqa: S102 - what all of this is for
    run = names.get("run")
    if not callable(run):
        raise SourceError("defines no function `run(inputs)`")
    return run


def _name(error: BaseException) -> str:
    """The nearest class of Python's own: what source calls a class, or says in a message, may be somebody's data."""
    return next(each.__name__ for each in type(error).__mro__ if getattr(builtins, each.__name__, None) is each)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError, frames.FrameError):
        main(int(sys.argv[1]), int(sys.argv[2]))
