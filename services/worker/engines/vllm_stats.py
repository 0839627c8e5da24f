"""What vLLM's scheduler says of itself after each of its steps, kept for capacity reports. Without vLLM itself: its
records are read by attribute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from libs.clock import Clock
from services.worker.engines.library import Load
from services.worker.engines.port import Capacity

_WEIGHT = 0.1  # of the newest step in the smoothed figures


class SchedulerWatch:
    """The latest figures and the counters. `record` has the signature of vLLM's stat loggers."""

    def __init__(self, *, clock: Clock) -> None:
        self.total_blocks = 0
        self._clock = clock
        self._running = 0
        self._usage = 0.0
        self._busy = False
        self._recorded_at = 0.0
        self._prefill_seconds = 0.0  # of steps under way with prompts that have not given a token yet
        self._decode_step_seconds = 0.0
        self._prefill_rate = 0.0
        self._queried = 0
        self._hit = 0
        self._preemptions = 0
        self._settling: dict[asyncio.Future[None], int] = {}  # to the steps that are still awaited

    def begin(self) -> None:
        """A request is on its way to vLLM."""
        if not self._busy:
            self._busy = True
            self._recorded_at = self._clock.monotonic()

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Take in one step's figures; both kinds may be None."""
        idle = scheduler_stats is not None and not scheduler_stats.num_running_reqs
        for waiting, steps in [*self._settling.items()]:
            self._settling[waiting] = steps - 1
            if (idle or steps == 1) and not waiting.done():
                waiting.set_result(None)
        now = self._clock.monotonic()
        # A step that follows an idle time began with the request that ended it, or at an unknown moment.
        seconds = now - self._recorded_at if self._busy else 0.0
        self._recorded_at = now
        if scheduler_stats is not None:
            self._running = scheduler_stats.num_running_reqs
            self._busy = self._running > 0
            self._usage = scheduler_stats.kv_cache_usage
            prefix = scheduler_stats.prefix_cache_stats
            self._queried += prefix.queries
            self._hit += prefix.hits
        if iteration_stats is not None:
            self._preemptions += iteration_stats.num_preempted_reqs
            self._smooth(seconds, iteration_stats.num_prompt_tokens)
        else:
            self._prefill_seconds += seconds

    async def settled(self, seconds: float) -> None:
        """Return once what vLLM was told before has had its effect: the step under way, which may not have heard of it,
        and one more have ended, or one has left nothing running. At the latest after `seconds`."""
        waiting = asyncio.get_running_loop().create_future()
        self._settling[waiting] = 2
        try:
            await asyncio.wait((waiting,), timeout=seconds)
        finally:
            del self._settling[waiting]

    def _smooth(self, seconds: float, prompt_tokens: int) -> None:
        if prompt_tokens:
            spent, self._prefill_seconds = self._prefill_seconds + seconds, 0.0
            if spent:
                self._prefill_rate = _smoothed(self._prefill_rate, prompt_tokens / spent)
        elif seconds:
            self._decode_step_seconds = _smoothed(self._decode_step_seconds, seconds)

    def capacity(self, load: Load) -> Capacity:
        """The present load: vLLM's figures where it has any, the follower's for what vLLM has not seen yet."""
        running = min(self._running, load.live)
        used = round(self.total_blocks * self._usage) if load.live else 0
        return Capacity(
            free_blocks=self.total_blocks - used,
            running=running,
            waiting=load.live - running,
            queued_prefill_tokens=load.queued_prefill_tokens,
            last_step_seconds=load.last_step_seconds,
            decode_step_seconds=self._decode_step_seconds,
            prefill_tokens_per_second=self._prefill_rate,
            prefix_queried_total=self._queried,
            prefix_hit_total=self._hit,
            preemptions_total=self._preemptions,
        )


def stat_logger_factory(base: type, record: Callable[..., None]) -> Callable[..., Any]:
    """A factory of vLLM's stat loggers (`base` is its StatLoggerBase) that hand every record to `record`."""

    def log_engine_initialized(_: Any) -> None:
        """Nothing to say."""

    def init(_: Any, vllm_config: Any, engine_index: int = 0) -> None:
        """Nothing to keep."""

    members = {
        "__init__": init,
        "record": lambda _, *args, **kwargs: record(*args, **kwargs),
        "log_engine_initialized": log_engine_initialized,
    }
    logger = type("WeirStatLogger", (base,), members)
    return lambda vllm_config, engine_index=0: logger(vllm_config, engine_index)


def _smoothed(before: float, now: float) -> float:
    return now if not before else before + _WEIGHT * (now - before)
