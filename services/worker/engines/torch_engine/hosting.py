"""Where the torch engine runs: in a thread of the worker's, or in a process of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

from libs.clock import Clock, SystemClock
from services.worker.engines.driven import DrivenEngine
from services.worker.engines.process import ProcessEngine
from services.worker.engines.threaded import ThreadedEngine
from services.worker.engines.torch_engine.engine import TorchCore
from services.worker.engines.torch_engine.settings import TorchSettings


def build(
    settings: TorchSettings,
    *,
    clock: Clock | None = None,
    on_failure: Callable[[BaseException], None] | None = None,
    isolation: Literal["process", "thread"] = "thread",
) -> DrivenEngine:
    """A torch engine in a thread or a process of its own; it loads nothing, nor imports torch, before `start`."""
    make_core = functools.partial(TorchCore, settings, clock=clock or SystemClock())
    if isolation == "process":
        return ProcessEngine(make_core, on_failure=on_failure)
    return ThreadedEngine(make_core(), name="torch-engine", on_failure=on_failure)
