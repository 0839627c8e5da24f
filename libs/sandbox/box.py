"""The parent's side: a child that runs one source, with a time limit for each call, started again when it is lost."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from libs.sandbox import fences, frames

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 30.0
_BEGIN = "import sys; sys.path.insert(0, sys.argv[3]); import runpy; sys.argv[0] = 'sandbox'; "
_BEGIN += "runpy.run_module('libs.sandbox.child', run_name='__main__')"
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
"""All that the child has of one. A child with threads of a library's could not be enclosed."""


_FAULT = re.compile(r"raises [A-Za-z]{1,40}|an array must hold numbers, or `bytes` as objects")


class UnsafeError(Exception):
    """This kernel cannot enclose code, and the code is not trusted to run without; the message says what it lacks."""


class SourceError(Exception):
    """The source cannot be run; the message says why."""


class RunError(Exception):
    """A call failed: the source raised something, took too long, wanted too much memory or gave what no tensor is."""


class Box:
    """Source in a child of its own. For one thread at a time."""

    def __init__(self, source: str, *, seconds: float, memory: int, trusted: bool = False) -> None:
        """Start it.

        :param seconds: of one call; a child that takes longer is killed.
        :param memory: bytes beyond what an empty child has.
        :param trusted: it may run where the kernel lacks fences.
        :raises UnsafeError: it may not.
        :raises SourceError: it cannot run.
        """
        self.fences = fences.available()
        if not (self.fences.complete or trusted):
            raise UnsafeError(f"{self.fences}: code runs here only if it is trusted")
        self._source, self._seconds, self._memory = source, seconds, memory
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._ends = 0.0
        self._start()

    @property
    def pid(self) -> int:
        """Of the child; 0: there is none now."""
        return self._child.pid if self._child is not None else 0

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One call.

        :raises RunError: it failed; the message repeats nothing of the inputs.
        :raises SourceError: a child that was lost could not be started again.
        """
        if self._channel is None:
            self._start()
        header, arrays = self._ask(frames.pack({}, inputs), self._seconds)
        if fault := header.get("fault"):
            # The source can write to the channel as the child does: its words are not repeated.
            raise RunError(fault if isinstance(fault, str) and _FAULT.fullmatch(fault) else "fails")
        return arrays

    def close(self) -> None:
        """End the child."""
        if self._channel is not None:
            self._channel.close()
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._channel = self._child = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-I", "-c", _BEGIN, str(theirs.fileno()), str(self._memory), str(_ROOT)]
            self._child = subprocess.Popen(  # noqa: S603 - our own program
                argv,
                env=_ENVIRONMENT,
                cwd="/",
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._channel = ours
        try:
            header, _ = self._ask(frames.pack({"source": self._source}, {}), _START_SECONDS)
        except RunError as error:
            raise SourceError(f"its source does not get ready: {error}") from None
        if fault := header.get("fault"):
            self.close()
            raise SourceError(str(fault)[:1000])
        if (header.get("seccomp"), header.get("landlock")) != (self.fences.seccomp, self.fences.landlock):
            self.close()
            raise SourceError("its child is not enclosed as it should be")

    def _ask(self, frame: bytes, seconds: float) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Sends a frame and waits for the answer; a child that does not answer in time, or not properly, is killed."""
        self._ends = time.monotonic() + seconds
        try:
            self._send(frame)
            return frames.unpack(self._read, self._memory)
        except TimeoutError:
            self.close()
            raise RunError(f"takes longer than {seconds:g} s") from None
        except (EOFError, OSError):
            self.close()
            raise RunError("its process ended") from None
        except frames.FrameError as error:
            self.close()
            raise RunError(f"its process answers with what is no answer: {error}") from None
        except BaseException:
            self.close()  # what the child says next would be the answer to this
            raise

    def _send(self, frame: bytes) -> None:
        view = memoryview(frame)
        while view:
            view = view[self._live().send(view) :]

    def _read(self, count: int) -> bytes:
        content = bytearray()
        while len(content) < count:
            part = self._live().recv(min(count - len(content), 1 << 20))
            if not part:
                raise EOFError
            content += part
        return bytes(content)

    def _live(self) -> socket.socket:
        if self._channel is None or (left := self._ends - time.monotonic()) <= 0:
            raise TimeoutError
        self._channel.settimeout(left)
        return self._channel

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
