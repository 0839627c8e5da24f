"""A process of its own for what a stranger has made: what parses or runs it is not where keys are."""

from __future__ import annotations

import os
import subprocess
import sys

from libs.children.spawning import module_path

_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
"""What of the environment it needs; keys and tokens are none of it."""


def run_alone(module: str, given: bytes, *, seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Runs `python -m MODULE` with `given` as its standard input. It finds our modules, and none of the folder where
    somebody stands; limits of time and memory it sets itself.

    :raises TimeoutError: it runs longer than that.
    """
    argv = [sys.executable, "-P", "-m", module]
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | {"PYTHONPATH": module_path()}
    try:
        return subprocess.run(  # noqa: S603 - our own
            argv, input=given, capture_output=True, check=False, timeout=seconds, env=environment
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{module} runs longer than {seconds:g} s") from None
