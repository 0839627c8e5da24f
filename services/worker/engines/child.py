"""The engine's process: `python -m services.worker.engines.child SOCKET PARENT`, started by `process.py` alone.

One thread does everything: between two steps it looks at its socket, and it sleeps there while there is no work. It
dies with its worker: the kernel kills it then, and the end of the socket ends it too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import socket
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

from libs.children.child import be_a_child
from services.worker.engines.core import Command, Report, Stop, run_core
from services.worker.engines.wire import FrameReader, Log, Said, decode_command, frame

_CHUNK = 1 << 18  # bytes read at once
_FLUSH_SECONDS = 2.0  # for the last reports, if the worker is slow to read them


class SocketLink:
    """A `CoreLink` over a socket, and the log's way out."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reader = FrameReader()
        self._commands: list[Command] = []
        self._unsent: deque[memoryview] = deque()
        self._sending = threading.RLock()  # a library's thread may log
        self._woken, self._waker = pipe = os.pipe()
        for end in pipe:
            os.set_blocking(end, False)
            weakref.finalize(self, os.close, end)
        self._stopping = False
        self.max_unsent = 256
        """Reports that wait for the socket; with more, the core waits."""

    def hello(self) -> bytes:
        """The first frame, which is no command.

        :raises EOFError: the worker is gone.
        """
        while not self._stopping:
            self._wait(select.POLLIN)
            for message in list(self._received()):
                return bytes(message)  # the worker sends nothing more before the core is loaded
        raise EOFError

    def receive(self, *, idle: bool) -> Sequence[Command] | None:
        """See `CoreLink`."""
        while True:
            if self._unsent:
                with self._sending:
                    self._send()
            self._read()
            if self._stopping:
                return None
            idle = idle and not self._was_woken()
            full = len(self._unsent) > self.max_unsent
            if not full and (self._commands or not idle):
                commands, self._commands = self._commands, []
                return commands
            self._wait(select.POLLIN | (select.POLLOUT if self._unsent else 0))

    def wake(self) -> None:
        """See `CoreLink`."""
        with contextlib.suppress(BlockingIOError):  # so many wakes are on their way that it will wake
            os.write(self._waker, b".")

    def report(self, report: Report) -> None:
        """See `CoreLink`."""
        self.say(report)

    def say(self, said: Said) -> None:
        """Send a report or a log record, or keep it until the socket takes it."""
        with self._sending:
            self._unsent.append(memoryview(frame(said)))
            self._send()

    def flush(self) -> None:
        """Wait until everything is sent, or the worker does not take it."""
        while self._unsent:
            if not self._wait(select.POLLOUT, seconds=_FLUSH_SECONDS):
                return
            with self._sending:
                self._send()

    def _wait(self, events: int, *, seconds: float | None = None) -> bool:
        """Until one of `events` is possible on the socket (it is gone: any is), or somebody has called `wake`; whether
        that came within `seconds`. `select` knows descriptors below 1024 only, and the socket has the number that it
        had in a worker with thousands of connections."""
        poll = select.poll()
        poll.register(self._socket, events)
        if events & select.POLLIN:
            poll.register(self._woken, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def _send(self) -> None:
        unsent = self._unsent
        while unsent:
            try:
                sent = self._socket.send(unsent[0])
            except BlockingIOError:
                return
            except OSError:  # the worker is gone
                self._stopping = True
                unsent.clear()
                return
            if sent < len(unsent[0]):
                unsent[0] = unsent[0][sent:]
            else:
                unsent.popleft()

    def _read(self) -> None:
        for message in self._received():
            command = decode_command(message)
            if isinstance(command, Stop):
                self._stopping = True
            else:
                self._commands.append(command)

    def _was_woken(self) -> bool:
        try:
            return bool(os.read(self._woken, _CHUNK))
        except BlockingIOError:
            return False

    def _received(self) -> Iterator[memoryview]:
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            yield from self._reader.feed(data)
        else:
            self._stopping = True


class ForwardedLogs(logging.Handler):
    """Sends this process's log records to the worker, whose handler writes them."""

    def __init__(self, link: SocketLink) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        fields = {str(name): _plain(value) for name, value in getattr(record, "fields", {}).items()}
        if record.exc_info:
            fields["exception"] = logging.Formatter().formatException(record.exc_info)
        self._link.say(Log(record.name, record.levelno, record.getMessage(), fields))


def _plain(value: object) -> object:
    """Values that MessagePack has are kept, others become text."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def main() -> None:
    """Run a core until its worker says stop or is gone."""
    be_a_child(int(sys.argv[2]))
    link = SocketLink(socket.socket(fileno=int(sys.argv[1])))
    try:
        hello = link.hello()
    except EOFError:
        return
    # What comes over this socket is the worker's own; nobody else holds its other end.
    make_core, link.max_unsent, level = pickle.loads(hello)  # noqa: S301 - the worker's own socket pair, see above
    logging.basicConfig(handlers=[ForwardedLogs(link)], level=level, force=True)
    run_core(make_core, link)
    link.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # everything is closed; tearing down the core's libraries would only take time


if __name__ == "__main__":
    main()
