"""An engine core without a model: what is left is what a step costs on its way from a core to a gateway."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence

from services.worker.engines.port import Capacity, EngineInfo, FinishReason, SequenceRequest, StepOutput
from services.worker.engines.sync import Change

MODEL = "m@1"


class FreeCore:
    """A `SyncEngine`: every `pace` seconds one token for every sequence, at no cost but a list."""

    def __init__(self, *, pace: float) -> None:
        self._pace = pace
        self._left: dict[int, int] = {}  # handle → tokens to come
        self._new: set[int] = set()
        self._cancelled: list[int] = []
        self._steps = 0
        self._due = 0.0

    @property
    def info(self) -> EngineInfo:
        """See `SyncEngine`."""
        return EngineInfo(
            engine="free",
            simulated=True,
            models=(MODEL,),
            block_size=16,
            total_blocks=1 << 20,
            max_running=1024,
            max_context=1 << 20,
        )

    def load(self) -> None:
        """See `SyncEngine`."""

    def add(self, requests: Sequence[SequenceRequest]) -> None:
        """See `SyncEngine`."""
        for request in requests:
            self._left[request.handle] = request.params.max_tokens
            self._new.add(request.handle)

    def cancel(self, handles: Sequence[int]) -> None:
        """See `SyncEngine`."""
        self._cancelled += [handle for handle in handles if self._left.pop(handle, None)]

    def has_work(self) -> bool:
        """See `SyncEngine`."""
        return bool(self._left or self._cancelled)

    def step(self) -> StepOutput:
        """See `SyncEngine`."""
        now = time.monotonic()
        self._due = max(self._due + self._pace, now)
        time.sleep(self._due - now)
        self._steps += 1
        handles = list(self._left)
        count = len(handles)
        output = StepOutput(
            step=self._steps,
            handles=handles,
            tokens=[[5] for _ in handles],
            finish=[0] * count,
            logprobs={},
            errors={},
            prompt_tokens_cached=dict.fromkeys(self._new, 0) if self._new else {},
            step_seconds=self._pace,
        )
        self._new.clear()
        for index, handle in enumerate(handles):
            self._left[handle] -= 1
            if not self._left[handle]:
                del self._left[handle]
                output.finish[index] = FinishReason.LENGTH
        for handle in self._cancelled:
            output.handles.append(handle)
            output.tokens.append([])
            output.finish.append(FinishReason.CANCELLED)
        self._cancelled = []
        return output

    def capacity(self) -> Capacity:
        """See `SyncEngine`."""
        return Capacity(
            free_blocks=1 << 20,
            running=len(self._left),
            waiting=0,
            queued_prefill_tokens=0,
            last_step_seconds=self._pace,
        )

    def embed(self, model: str, prompt: Sequence[int]) -> Generator[bool, None, list[float]]:
        """See `SyncEngine`."""
        yield True
        return [1.0]

    def bring(self, model: str, folder: str, wake: Callable[[], None]) -> None:
        """See `SyncEngine`; it has its one model."""

    def take_out(self, model: str) -> None:
        """See `SyncEngine`."""

    def changes(self) -> Sequence[Change]:
        """See `SyncEngine`."""
        return ()

    def close(self) -> None:
        """See `SyncEngine`."""
