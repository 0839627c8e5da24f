"""Both ends of a contestant's process: one order per line of JSON on its standard input, one answer per line back.

The child's side needs the standard library alone, because one contestant runs with an interpreter of its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from libs.supervisor import leash

REPOSITORY = Path(__file__).resolve().parents[2]
THREADS = 2
"""Of every contestant's arithmetic."""

Order = dict[str, Any]
Answer = dict[str, Any]


def answers() -> TextIO:
    """Where answers go. Takes standard output away from everybody else: libraries that print there would garble it."""
    sys.stdout.flush()
    private = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(private, "w", buffering=1)


def serve(out: TextIO, work: Callable[[Order], Answer]) -> None:
    """Say that this process is ready, then answer orders until standard input ends."""
    out.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        out.write(json.dumps(work(json.loads(line))) + "\n")


def peak_rss() -> int:
    """The most memory this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class ContestantError(Exception):
    """A child process ended without an answer; the message holds the end of what it said."""


class Contestant:
    """A child process. Between orders it waits for input and uses no CPU."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        interpreter: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        log: Path,
    ) -> None:
        """Start `python -m module arguments`; what it prints goes to `log`."""
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                leash.leashed(interpreter, "-m", module, *arguments),
                cwd=REPOSITORY,
                env={**os.environ, "OMP_NUM_THREADS": str(THREADS), **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            self._read()
        except ContestantError:
            self.close()
            raise

    def ask(self, order: Mapping[str, Any]) -> Answer:
        """Send an order and wait for its answer.

        :raises ContestantError: the process ended.
        """
        stdin = self._process.stdin
        if stdin is None:
            raise ContestantError("the process was closed")
        try:
            stdin.write(json.dumps(order) + "\n")
            stdin.flush()
        except OSError:
            pass  # its log says more than a broken pipe
        return self._read()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def close(self) -> None:
        """End its input and wait until it is gone."""
        self._process.communicate()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:  # an order may be under way, and nobody waits for its answer
            self._process.kill()
        self.close()

    def _read(self) -> Answer:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise ContestantError(f"{self._log}:\n{_tail(self._log)}")
        return dict(json.loads(line))


def _tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def outcome(seconds: float, first: Sequence[float], prompts: int, outputs: int) -> Answer:
    """The answer to a workload: wall seconds, seconds to each request's first token, tokens in and out."""
    return {"seconds": seconds, "ttft": list(first), "prompt_tokens": prompts, "output_tokens": outputs}
