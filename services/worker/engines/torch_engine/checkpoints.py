"""Checkpoints on disk: files that are verified, staged through the local weight cache where there is one, and compared
with their configuration; and how long reading them took."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from libs.clock import Clock
from libs.families import ModelConfig
from libs.versions.weight_cache import CacheUnavailableError, WeightCache
from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.loading import Checkpoint, StageTimer, read_checkpoint, stage_files
from services.worker.engines.torch_engine.settings import TorchSettings
from services.worker.model_files import ModelFiles

logger = logging.getLogger(__name__)


class Checkpoints:
    """Those of the models that are known, in memory or not. All methods run in the engine's thread; what `reading`
    returns, `[]` and `release` in any."""

    def __init__(self, settings: TorchSettings, *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._known: Mapping[str, Checkpoint] = {}
        self._timers: dict[str, StageTimer] = {}
        self._cache = _open_cache(settings, clock)

    def __contains__(self, model: str) -> bool:
        return model in self._known

    def __getitem__(self, model: str) -> Checkpoint:
        return self._known[model]

    @property
    def configs(self) -> Mapping[str, ModelConfig]:
        """The configuration of every model and adapter."""
        configs = {model: checkpoint.config for model, checkpoint in self._known.items()}
        return configs | {name: configs[source.base] for name, source in self._settings.adapters.items()}

    @property
    def load_seconds(self) -> dict[str, dict[str, float]]:
        """How long the stages of each model's latest load took."""
        return {model: dict(timer.report().seconds.items()) for model, timer in self._timers.items()}

    @property
    def cache_outcomes(self) -> dict[str, int]:
        """Files looked up in the local weight cache, by outcome; empty without one."""
        if self._cache is None:
            return {}
        counters = self._cache.counters
        return {"hit": counters.hits, "miss": counters.misses, "corrupted": counters.corrupted}

    def open(self) -> None:
        """Read the files of all configured models.

        :raises EngineLoadError: one of them cannot be used; the message names the file.
        """
        for name, source in self._settings.adapters.items():
            if source.base not in self._settings.models:
                raise EngineLoadError(f"adapter {name} needs {source.base}, which is not configured")
        for model, folder in self._settings.models.items():
            self.add(model, self.reading(model, folder)())

    def reading(self, model: str, folder: Path) -> Callable[[], Checkpoint]:
        """What reads the files of a further model; it raises EngineLoadError as `open` does."""
        timer = self._timers[model] = StageTimer(model, self._clock)
        return partial(self._read, folder, timer)

    def timer(self, model: str) -> StageTimer:
        """For the weights of a model, which are about to be read."""
        timer = self._timers[model]
        if timer.made:
            # The stages before this one belong to the first read alone.
            timer = self._timers[model] = StageTimer(model, self._clock)
        return timer

    def add(self, model: str, checkpoint: Checkpoint) -> None:
        """Know a model from now on."""
        # A new mapping each time: the threads that compile and load look at it too.
        self._known = {**self._known, model: checkpoint}

    def remove(self, model: str) -> None:
        """Know a model no more."""
        self._timers.pop(model, None)
        checkpoint = self._known[model]
        self._known = {name: each for name, each in self._known.items() if name != model}
        checkpoint.weights.close()
        self.release(checkpoint.files)

    def release(self, files: ModelFiles) -> None:
        """A model's files are needed no more."""
        if self._cache is not None:
            self._cache.release(files.folder)

    def close(self) -> None:
        """Close all files."""
        for checkpoint in self._known.values():
            checkpoint.weights.close()
        if self._cache is not None:
            self._cache.close()

    def _read(self, folder: Path, timer: StageTimer) -> Checkpoint:
        staged = stage_files(folder, timer, cache=self._cache, require_manifest=self._settings.require_manifest)
        try:
            return read_checkpoint(staged, timer)
        except BaseException:
            self.release(staged)
            raise


def _open_cache(settings: TorchSettings, clock: Clock) -> WeightCache | None:
    if settings.weight_cache is None:
        return None
    try:
        return WeightCache(settings.weight_cache, settings.weight_cache_bytes, clock=clock)
    except CacheUnavailableError as error:
        logger.warning("weight cache passed over", extra={"reason": str(error)})
        return None
