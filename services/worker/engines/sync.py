"""The synchronous core of an engine: it knows nothing of asyncio, threads or processes, and imports nothing of what
drives it (`core.py`)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

from services.worker.engines.port import Capacity, EngineInfo, EngineLoadError, SequenceRequest, StepOutput


class Change(NamedTuple):
    """A load or a removal of a model that has ended."""

    model: str
    loaded: bool
    """It was a load."""
    seconds: dict[str, float]
    """By stage, of a load."""
    error: EngineLoadError | None = None
    """Why it failed."""


class SyncEngine(Protocol):
    """A model runner that is driven from one thread; every method is called from that thread."""

    @property
    def info(self) -> EngineInfo:
        """See `Engine.info`; changes with what `changes` tells."""

    def load(self) -> None:
        """Read the models, warm up, self-test.

        :raises EngineLoadError: a file is missing, corrupted or unsupported.
        """

    def add(self, requests: Sequence[SequenceRequest]) -> None:
        """Take sequences in. Never raises for a request's sake: an impossible one is answered with
        FinishReason.ERROR by the next `step`."""

    def cancel(self, handles: Sequence[int]) -> None:
        """Mark sequences to end; the next `step` reports them CANCELLED and frees their memory. Unknown handles are
        ignored."""

    def has_work(self) -> bool:
        """Whether `step` would do or report anything."""

    def step(self) -> StepOutput:
        """Run one step: end what was cancelled or is past its deadline, then advance what is scheduled."""

    def capacity(self) -> Capacity:
        """The present load; called after every step, so it must be O(1)."""

    def embed(self, model: str, prompt: Sequence[int]) -> Generator[bool, None, list[float]]:
        """Compute the vector of one prompt, between steps: each `next` does a piece that holds a step up no longer than
        the prompts within it may. It gives True after a piece, False while it waits for its model and holds nothing.
        Closed, it gives up. Raises as `Engine.embed`."""

    def bring(self, model: str, folder: str, wake: Callable[[], None]) -> None:
        """Begin to load a model beside the steps; `changes` tells how it ended. `wake` is called, from any thread,
        when `changes` may have news."""

    def take_out(self, model: str) -> None:
        """Let a model's sequences run to their end, then drop it; `changes` tells when. One that is being loaded is
        dropped as soon as that can be."""

    def changes(self) -> Sequence[Change]:
        """Carry loads and removals on by what can be done at once; what has ended since the last call."""

    def close(self) -> None:
        """Release everything. Called once, last, also after a failed `load`."""
