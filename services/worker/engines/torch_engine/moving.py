"""Models that come and go while others run.

A model that comes goes through three states: *opened* (its files are verified and compared with its configuration, in
the loading thread), *wanted* (the shelf finds room and reads it, in the loading thread), served. A model that goes is
*leaving* until its last sequence has ended. All methods run in the engine's thread, between two steps; nothing here
waits for a disk or a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from services.worker.engines.port import EngineLoadError
from services.worker.engines.sync import Change
from services.worker.engines.torch_engine.loading import Checkpoint
from services.worker.engines.torch_engine.shelf import FAULTS, Shelf


class Moving:
    """`accept(model, checkpoint)` makes room for its keys and values and tells the scheduler of it, or raises
    EngineLoadError; `forget(model)` is the contrary; `uses(model)` says whether any sequence of it is alive."""

    def __init__(
        self,
        shelf: Shelf[Any],
        *,
        accept: Callable[[str, Checkpoint], None],
        forget: Callable[[str], None],
        uses: Callable[[str], bool],
    ) -> None:
        self._shelf = shelf
        self._accept = accept
        self._forget = forget
        self._uses = uses
        self._opening: dict[str, Future[Checkpoint]] = {}
        self._wanted: list[str] = []
        self._leaving: set[str] = set()
        self._ended: list[Change] = []

    @property
    def under_way(self) -> bool:
        """Whether anything comes or goes, or has ended and was not told yet."""
        return bool(self._opening or self._wanted or self._leaving or self._ended)

    @property
    def due(self) -> bool:
        """Whether there is something to do before anybody else says so: a model waits for room, is idle and leaving,
        or has ended its way."""
        waiting = any(not self._shelf.is_coming(model) for model in self._wanted)
        idle = any(not self._uses(model) and not self._shelf.is_coming(model) for model in self._leaving)
        return waiting or idle or bool(self._ended)

    @property
    def wanted(self) -> list[str]:
        """Models to read, in the order in which they were asked for."""
        return list(self._wanted)

    @property
    def hidden(self) -> frozenset[str]:
        """Models that the shelf knows and that are not served yet, or no more."""
        return frozenset((*self._leaving, *self._wanted))

    def bring(self, model: str, folder: Path, wake: Callable[[], None]) -> None:
        """Begin to load a model; `wake` is called from the loading thread whenever a part of that is done."""
        if model in self._opening or model in self._shelf.configs:
            self._fail(model, EngineLoadError(f"{model} is loaded already, or comes or goes at this moment"))
        else:
            self._opening[model] = self._shelf.open_one(model, folder, wake)

    def take_out(self, model: str) -> None:
        """Begin to drop a model, wherever it is on its way."""
        resting = self._shelf.adapters_of(model)
        if resting:
            error = EngineLoadError(f"{model} cannot be unloaded: the adapters {', '.join(resting)} rest on it")
            self._ended.append(Change(model, False, {}, error))
            return
        if model in self._opening or model in self._wanted:
            self._fail(model, EngineLoadError(f"{model} was taken out before it was loaded"))
        if model in self._wanted:
            self._wanted.remove(model)
        if model in self._opening:
            # Its files are closed when the thread is through with them.
            self._opening.pop(model).add_done_callback(self._close)
        if model in self._shelf.configs:
            self._leaving.add(model)
        else:
            self._ended.append(Change(model, False, {}))

    def advance(self) -> None:
        """Do what can be done at once."""
        for model, future in [*self._opening.items()]:
            if future.done():
                del self._opening[model]
                self._opened(model, future)
        for model in [*self._wanted]:
            if model in self._shelf.runnable:
                self._wanted.remove(model)
                self._ended.append(Change(model, True, self._shelf.load_seconds[model]))
        for model in [*self._leaving]:
            if not self._uses(model) and not self._shelf.is_coming(model):
                self._leaving.remove(model)
                self._drop(model)
                self._ended.append(Change(model, False, {}))

    def fail(self, model: str, reason: str) -> None:
        """The shelf could not read a model, or never will; nothing happens unless it was to come."""
        if model in self._wanted:
            self._wanted.remove(model)
            self._drop(model)
            self._fail(model, EngineLoadError(reason))

    def ended(self) -> Iterator[Change]:
        """What has ended since the last call."""
        ended, self._ended = self._ended, []
        yield from ended

    def _opened(self, model: str, future: Future[Checkpoint]) -> None:
        try:
            checkpoint = future.result()
        except FAULTS as error:
            self._fail(model, error if isinstance(error, EngineLoadError) else EngineLoadError(f"{model}: {error}"))
            return
        try:
            self._accept(model, checkpoint)
        except FAULTS as error:
            checkpoint.weights.close()
            self._shelf.release(checkpoint.files)
            self._fail(model, error if isinstance(error, EngineLoadError) else EngineLoadError(f"{model}: {error}"))
            return
        self._shelf.add(model, checkpoint)
        self._wanted.append(model)

    def _drop(self, model: str) -> None:
        self._forget(model)
        self._shelf.remove(model)

    def _fail(self, model: str, error: EngineLoadError) -> None:
        self._ended.append(Change(model, True, {}, error))

    def _close(self, future: Future[Checkpoint]) -> None:
        """In the loading thread."""
        if not future.cancelled() and future.exception() is None:
            future.result().weights.close()
            self._shelf.release(future.result().files)
