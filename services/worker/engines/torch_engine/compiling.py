"""Structures are compiled in a thread of their own: a large schema takes tenths of a second, and everybody else's
tokens would wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from services.worker.engines.port import EngineLoadError, SequenceRequest

if TYPE_CHECKING:
    from services.worker.engines.torch_engine.sampler import SequenceSampler


class Compiling:
    """Sequences that wait for their structure. All methods are called from the engine's thread."""

    def __init__(self, make: Callable[[SequenceRequest], SequenceSampler]) -> None:
        """`make` gives a request's sampling state; it raises ValueError, with a message for the caller, where the
        structure is at fault, and EngineLoadError where the model is."""
        self._make = make
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="structures")
        self._waiting: dict[int, tuple[SequenceRequest, Future[SequenceSampler]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, handle: int) -> bool:
        return handle in self._waiting

    def uses(self, model: str) -> bool:
        """Whether a sequence of this model waits here."""
        return any(request.model == model for request, _ in self._waiting.values())

    def start(self, request: SequenceRequest) -> None:
        """Compile the request's structure."""
        self._waiting[request.handle] = request, self._thread.submit(self._make, request)

    def forget(self, handles: Iterable[int]) -> Iterator[int]:
        """Stop waiting for these; yields those that were waited for."""
        for handle in handles:
            entry = self._waiting.pop(handle, None)
            if entry is not None:
                entry[1].cancel()
                yield handle

    def finished(self) -> Iterator[tuple[SequenceRequest, SequenceSampler | str]]:
        """The requests whose structure is compiled, each with its sampling state or with what is wrong."""
        for handle, (request, future) in [*self._waiting.items()]:
            if not future.done():
                continue
            del self._waiting[handle]
            try:
                yield request, future.result()
            except ValueError as error:
                yield request, str(error)
            except EngineLoadError:
                yield request, "this model cannot keep to a structure"

    def close(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)
