"""Embeddings between the steps: which models they wait for and which they use."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.engines.port import EngineLoadError

if TYPE_CHECKING:
    from services.worker.engines.torch_engine.models import Models


@dataclass(slots=True, eq=False)
class _Awaited:
    """A model that an embedding waits for."""

    model: str
    failure: str = ""
    """Why it cannot be read."""


class Embeddings:
    """`most()` is how many tokens a piece may have now."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._awaited: list[_Awaited] = []
        self.busy: list[str] = []
        """The models of embeddings under way."""

    @property
    def awaited(self) -> list[str]:
        """The models that embeddings wait for."""
        return [each.model for each in self._awaited]

    def fail(self, model: str, message: str) -> None:
        """The model cannot be read: who waits for it is told so."""
        for each in self._awaited:
            if each.model == model:
                each.failure = message

    def compute(
        self, models: Models, model: str, prompt: Sequence[int], wait: Callable[[], None]
    ) -> Generator[bool, None, list[float]]:
        """See `SyncEngine.embed`; `wait()` is called while the model is not in memory."""
        if model not in models.shelf.configs:
            raise EngineLoadError(f"model {model} is not loaded here")
        awaited = _Awaited(model)
        self._awaited.append(awaited)
        try:
            while model not in models.shelf.runnable:
                if awaited.failure:
                    raise EngineLoadError(awaited.failure)
                wait()
                yield False
        finally:
            self._awaited.remove(awaited)
        self.busy.append(model)
        try:
            return (yield from models.embed(model, prompt, self._most))
        finally:
            self.busy.remove(model)
