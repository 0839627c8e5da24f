"""Locust's end of the pipe to the process that sends. For gevent: a call blocks its greenlet alone."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import gevent
import msgspec
from gevent import subprocess
from gevent.event import AsyncResult
from gevent.lock import RLock

from loadtest.locust.messages import Ask, Effort, Told
from loadtest.locust.settings import Settings

_CLOSE_SECONDS = 20.0
_encode = msgspec.json.Encoder().encode
_told = msgspec.json.Decoder(Told).decode
_effort = msgspec.json.Decoder(Effort).decode


class SenderLost(RuntimeError):
    """The process that sends has ended; the run cannot go on."""


class Link:
    """The process that sends, from its start to `close`."""

    def __init__(self, settings: Settings, *, on_lost: Callable[[], object]) -> None:
        """`on_lost` is called, in a greenlet of its own, should the process end by itself."""
        # Keys go over the pipe: neither a command line nor an environment tells them.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.locust.child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._ids = itertools.count(1)
        self._waiting: dict[int, AsyncResult[Told]] = {}
        self._lock = RLock()
        self._on_lost = on_lost
        self._closing = False
        self._last = b""
        self._write(settings)
        self._reading = gevent.spawn(self._read)

    def call(self, **wish: Any) -> Told:
        """Have something done (fields of `Ask`) and wait for what became of it. A greenlet that is killed meanwhile
        gives it up.

        :raises SenderLost: the process has ended.
        """
        ask = Ask(id=next(self._ids), **wish)
        result: AsyncResult[Told] = AsyncResult()
        self._waiting[ask.id] = result
        try:
            self._write(ask)
            return result.get()
        except gevent.GreenletExit:
            self._write(Ask(id=ask.id, do="leave"))
            raise
        finally:
            self._waiting.pop(ask.id, None)

    def close(self) -> Effort:
        """End the process; what it used.

        :raises SenderLost: it did not end as it should.
        """
        self._closing = True
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reading.join()
        self._process.stdout.close()
        try:
            effort = _effort(self._last)
        except msgspec.DecodeError:
            effort = None
        if code or effort is None:
            raise SenderLost(f"the sending process ended with {code}")
        return effort

    def _read(self) -> None:
        for line in self._process.stdout:
            self._last = line
            if b'"cpu_seconds"' in line:
                continue
            told = _told(line)
            # Nobody waits for what was given up.
            if (result := self._waiting.get(told.id)) is not None:
                result.set(told)
        for result in self._waiting.values():
            result.set_exception(SenderLost("the sending process has ended"))
        if not self._closing:
            gevent.spawn(self._on_lost)

    def _write(self, message: Settings | Ask) -> None:
        try:
            with self._lock:
                self._process.stdin.write(_encode(message) + b"\n")
                self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise SenderLost(f"the sending process has ended: {error}") from error
