"""A synchronous engine core that does as its prompts say; importable, so that it also runs in a process of its own."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Generator
from pathlib import Path
from typing import Any

from services.worker.engines.port import (
    Capacity,
    EngineInfo,
    EngineLoadError,
    FinishReason,
    SamplingParams,
    SequenceRequest,
    StepOutput,
    TokenLogprob,
)
from services.worker.engines.sync import Change

MODEL = "m@1"
RAISE, KILL, EXIT, LOG, GARBAGE = 101, 102, 103, 104, 105
"""Prompts that begin with one of these make the next step fail, die, leave, write a log line, spoil its socket."""
FAULT, REFUSED = 106, 107
"""Sequences with such a prompt end with an error: by the engine's fault, by their own."""
BLOCKS = 9


def request(handle: int, count: int = 3, *, order: int = 1, model: str = MODEL, **fields: Any) -> SequenceRequest:
    """A sequence that gets the tokens 0, 1, 2 … up to `count` of them."""
    params = fields.pop("params", SamplingParams(max_tokens=count))
    return SequenceRequest(handle=handle, model=model, prompt=[order, handle], params=params, **fields)


class OrderedCore:
    """A `SyncEngine`. `refuse`: a file whose existence makes `load` fail, and whose content says why."""

    def __init__(self, *, refuse: Path | None = None) -> None:
        self._refuse = refuse
        self._live: dict[int, tuple[list[int], SequenceRequest]] = {}  # handle → (the next token, its request)
        self._cancelled: deque[int] = deque()
        self._orders: deque[int] = deque()
        self._steps = 0
        self._models = [MODEL]
        self._leaving: list[str] = []
        self._changes: list[Change] = []

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            engine="ordered", simulated=True, models=tuple(self._models), block_size=4, total_blocks=BLOCKS,
            max_running=4, max_context=10_000,
        )  # fmt: skip

    def load(self) -> None:
        if self._refuse is not None and self._refuse.exists():
            raise EngineLoadError(self._refuse.read_text())

    def add(self, requests: Any) -> None:
        for each in requests:
            self._live[each.handle] = ([0], each)
            self._orders.append(each.prompt[0])

    def cancel(self, handles: Any) -> None:
        self._cancelled += [handle for handle in handles if self._live.pop(handle, None)]

    def has_work(self) -> bool:
        return bool(self._live or self._cancelled or self._leaving)

    def step(self) -> StepOutput:
        while self._orders:
            _obey(self._orders.popleft())
        output = StepOutput(self._steps, [], [], [], {}, {}, {})
        self._steps += 1
        while self._cancelled:
            _append(output, self._cancelled.popleft(), [], FinishReason.CANCELLED)
        for handle, (state, each) in list(self._live.items()):
            if each.prompt[0] in (FAULT, REFUSED):
                _append(output, handle, [], FinishReason.ERROR)
                output.errors[handle] = "it failed"
                if each.prompt[0] == FAULT:
                    output.faults.append(handle)
                del self._live[handle]
                continue
            if state[0] == 0:
                output.prompt_tokens_cached[handle] = 0
            if each.params.logprobs is not None:
                output.logprobs[handle] = [TokenLogprob(-0.5, [(7, -1.5)])]
            _append(output, handle, [state[0]], 0)
            state[0] += 1
            if state[0] == each.params.max_tokens:
                output.finish[-1] = FinishReason.LENGTH
                del self._live[handle]
        return output

    def capacity(self) -> Capacity:
        return Capacity(
            free_blocks=BLOCKS - len(self._live), running=len(self._live), waiting=0, queued_prefill_tokens=0,
            last_step_seconds=0.0,
        )  # fmt: skip

    def embed(self, model: str, prompt: Any) -> Generator[bool, None, list[float]]:
        """A piece for each token."""
        if model != MODEL:
            raise EngineLoadError(f"model {model} is not loaded here")
        if not prompt:
            raise ValueError("the prompt is empty")
        if prompt[0] == RAISE:
            raise KeyError("no such row")
        for _ in prompt[1:]:
            yield True
        return [float(len(prompt)), float(os.getpid())]

    def bring(self, model: str, folder: str, wake: Any) -> None:
        """`folder` may be "broken", "never" (it waits for `take_out`), "die", or have a FOLDER.broken beside it."""
        if Path(f"{folder}.broken").exists():
            self._changes.append(Change(model, True, {}, EngineLoadError(f"{model}: {folder} is broken")))
            return
        match folder:
            case "broken":
                self._changes.append(Change(model, True, {}, EngineLoadError(f"{model}: {folder}")))
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "never":
                pass
            case _:
                threading.Thread(target=self._arrive, args=(model, wake)).start()

    def _arrive(self, model: str, wake: Any) -> None:
        self._models.append(model)
        self._changes.append(Change(model, True, {"read": 1.0}))
        wake()

    def take_out(self, model: str) -> None:
        self._leaving.append(model)

    def changes(self) -> list[Change]:
        for model in [each for each in self._leaving if not self._runs(each)]:
            self._leaving.remove(model)
            if model in self._models:
                self._models.remove(model)
            self._changes.append(Change(model, False, {}))
        changes, self._changes = self._changes, []
        return changes

    def _runs(self, model: str) -> bool:
        return any(each.model == model for _, each in self._live.values())

    def close(self) -> None:
        self._live.clear()


def no_library() -> OrderedCore:
    """A factory whose core needs a library that is not there."""
    raise ModuleNotFoundError("No module named 'accelerator'")


def _append(output: StepOutput, handle: int, tokens: list[int], finish: int) -> None:
    output.handles.append(handle)
    output.tokens.append(tokens)
    output.finish.append(finish)


def _obey(order: int) -> None:
    match order:
        case 101:
            raise RuntimeError("device lost")
        case 102:
            os.kill(os.getpid(), signal.SIGKILL)
        case 103:
            os._exit(3)
        case 104:
            logging.getLogger("tests.core").warning("warm", extra={"fields": {"degrees": 71, "secret": "s3cr3t"}})
        case 105:
            for number in map(int, os.listdir("/proc/self/fd")):
                if os.path.exists(f"/proc/self/fd/{number}") and _is_socket(number):
                    os.set_blocking(number, True)
                    os.write(number, b"\xff" * 65536)


def _is_socket(number: int) -> bool:
    return os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
