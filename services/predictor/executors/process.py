"""A process with one model (`child.py`), as its predictor sees it."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress

import msgspec
from weir.registry.v1 import registry_pb2

from libs.children.spawning import ended, exit_of, spawn
from libs.telemetry import get_logger
from services.predictor.executors.loading import Prepared
from services.predictor.executors.shared import Arena
from services.predictor.executors.wire import PACKET, Given, Load, Loaded, Refused, Run, Said, decode_said, encode
from services.predictor.executors.work import Crashed, Died
from services.predictor.files import Files
from services.predictor.port import LoadError, ModelError

log = get_logger(__name__)

_EXIT_SECONDS = 1.0
"""From the end of its socket to the end of a process."""

Prepare = Callable[[Files, registry_pb2.PredictionSpec], Prepared]


class ModelProcess:
    """It does one thing at a time, and one wake-up on each side is all that a batch takes.

    :ivar inputs: its batches' tensors.
    :ivar outputs: what it gave, until the next batch.
    """

    def __init__(self) -> None:
        """To be called on the loop's thread; `start` makes ready ones."""
        self._loop = asyncio.get_running_loop()
        self.inputs, self.outputs = Arena.create(), Arena.create()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        self._answer: asyncio.Future[Said] | None = None
        self._hung_up = False
        with theirs:
            descriptors = (self.inputs.fd, self.outputs.fd)
            self._process = spawn("services.predictor.executors.child", theirs, also=descriptors)
        self._exited = exit_of(self._process, self._loop)
        self._exited.add_done_callback(lambda _: self._end())
        self._loop.add_reader(self._link, self._readable)

    @classmethod
    async def start(
        cls, files: Files, spec: registry_pb2.PredictionSpec, prepare: Prepare
    ) -> tuple[ModelProcess, Loaded]:
        """A process that has loaded, tested and warmed the model.

        :raises LoadError: it cannot be loaded, or the process died of it.
        """
        process = cls()
        try:
            listed = None if files.listed is None else dict(files.listed)
            asked = Load(str(files.folder), listed, _bare(spec).SerializeToString(), pickle.dumps(prepare))
            if len(encode(asked)) > PACKET:
                raise LoadError(f"its declaration and the list of its files have more than {PACKET} bytes")
            said = await process._ask(asked)
        except Died as died:
            raise LoadError(str(died)) from None
        except BaseException:
            await process.close()
            raise
        if isinstance(said, Loaded):
            return process, said
        await process.close()
        if isinstance(said, Refused):
            raise LoadError(said.message or f"loading it raised {said.kind}")
        raise LoadError("its process answers nonsense")

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    async def run(self, message: Run) -> Given:
        """Run what the message says is in `inputs`.

        :raises ModelError: one of the rows, or all, are at fault.
        :raises Died: the process is no more.
        :raises Crashed: the model raised something else.
        """
        said = await self._ask(message)
        if isinstance(said, Given):
            return said
        if isinstance(said, Refused) and said.kind == ModelError.__name__:
            raise ModelError(said.message, said.tensor)
        raise Crashed(f"the model raised {said.kind}" if isinstance(said, Refused) else "the model answers nonsense")

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    async def close(self) -> None:
        """End it: in the midst of something by force, else in its time."""
        if self._answer is not None:
            self.kill()
        self._hang_up()
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await asyncio.shield(self._exited)
        except TimeoutError:
            self.kill()
            await self._exited

    async def _ask(self, message: Load | Run) -> Said:
        if self._hung_up:
            raise Died(self._died())
        self._answer = self._loop.create_future()
        with suppress(OSError):  # it is dying, and `_end` says so
            self._link.send(encode(message))
        try:
            return await self._answer
        finally:
            self._answer = None

    def _readable(self) -> None:
        try:
            packet = self._link.recv(PACKET)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if packet:
            try:
                said = decode_said(packet)
            except msgspec.MsgspecError:
                log.error("model_process_garbled", pid=self.pid)
            else:
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(said)
                return
        self._loop.remove_reader(self._link)
        self.kill()  # and so the end of its process is its end; what it died of, if it did, is what that says

    def _end(self) -> None:
        self._hang_up()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Died(self._died()))

    def _died(self) -> str:
        return f"the model's {ended(self._exited.result())}" if self._exited.done() else "the model's process is ending"

    def _hang_up(self) -> None:
        if not self._hung_up:
            self._hung_up = True
            self._loop.remove_reader(self._link)
            self._link.close()


def _bare(spec: registry_pb2.PredictionSpec) -> registry_pb2.PredictionSpec:
    """Without what is looked at before and after a model runs: categories alone may be more than a packet holds."""
    found = registry_pb2.PredictionSpec()
    found.CopyFrom(spec)
    for tensor in (*found.inputs, *found.outputs):
        tensor.ClearField("rules")
        tensor.ClearField("columns")
    return found
