"""The staged load of one model, each stage timed: verify → cache → read → build → warm up → self-test.

The first three are here; building the model and running it are the engine's. What a stage took is exported as
`weir_worker_load_seconds{model, stage}`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from libs.clock import Clock
from libs.families import ModelConfig
from libs.versions.manifest import MANIFEST, Manifest, read_manifest
from libs.versions.weight_cache import CacheUnavailableError, WeightCache
from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.config import GENERATION, load_config
from services.worker.engines.torch_engine.weights import INDEX, SINGLE, Weights, check_weights, load_weights
from services.worker.model_files import ModelFiles

logger = logging.getLogger(__name__)

Stage = Literal["verify", "cache", "read", "build", "warm_up", "self_test"]
STAGES: tuple[Stage, ...] = ("verify", "cache", "read", "build", "warm_up", "self_test")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How long each stage of a model's load took, in seconds; a stage that did not happen is absent."""

    model: str
    seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.seconds.values())


class StageTimer:
    """Measures the stages of one load. A stage that is entered again adds up; one that fails counts too."""

    def __init__(self, model: str, clock: Clock) -> None:
        self.model = model
        self._clock = clock
        self._seconds: dict[Stage, float] = {}

    @property
    def made(self) -> bool:
        """Whether the model was built: a further build is another load."""
        return "build" in self._seconds

    @contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Measure what happens inside.

        :raises ValueError: there is no such stage (its name is a metric label, so the set is closed).
        """
        if name not in STAGES:
            raise ValueError(f"there is no load stage {name}")
        started = self._clock.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock.monotonic() - started

    def report(self) -> LoadReport:
        """What was measured so far, in the order of the stages."""
        ordered: dict[str, float] = {name: self._seconds[name] for name in STAGES if name in self._seconds}
        return LoadReport(self.model, MappingProxyType(ordered))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose names, shapes and types are checked and whose tensors are read when looked up."""

    files: ModelFiles
    config: ModelConfig
    weights: Weights


def stage_files(
    folder: Path, timer: StageTimer, *, cache: WeightCache | None = None, require_manifest: bool = True
) -> ModelFiles:
    """The files to load a model from: those of `folder` itself, or the cache's copy of them.

    Without a manifest, which `require_manifest=False` allows, nothing is checked or cached. A cache that cannot take
    the model (too small, all in use, disk full) is passed over with a warning. A folder that is away is no fault when
    the cache has the model. Give a cached folder back with
    `cache.release`.

    :raises EngineLoadError: a file is missing or not what the manifest says; the message names it.
    """
    if cache is not None and (require_manifest or (folder / MANIFEST).exists()):
        with timer.stage("verify"):
            manifest = _manifest(folder, timer.model, cache)
        try:
            with timer.stage("cache"):
                cached = cache.fetch(folder, manifest)
            return ModelFiles(cached, manifest, known=cache.knows)
        except CacheUnavailableError as error:
            logger.warning("weight cache passed over", extra={"model": timer.model, "reason": str(error)})
    return ModelFiles.of(folder, timer.model, required=require_manifest)


def read_checkpoint(files: ModelFiles, timer: StageTimer) -> Checkpoint:
    """Configuration and tensors of a checkpoint, compared with each other before any tensor is read.

    :raises EngineLoadError: a file is missing, malformed or unsupported, or a tensor is missing, surplus or misshapen.
    """
    with timer.stage("read"):
        config = load_config(files)
    with timer.stage("verify"):
        # Opening a file is hashing it, unless the cache knows it.
        weights = load_weights(files)
    with timer.stage("read"):
        check_weights(weights, config, files.folder / (INDEX if INDEX in files else SINGLE))
        return Checkpoint(files, config, weights)


def _manifest(folder: Path, model: str, cache: WeightCache) -> Manifest:
    if not folder.is_dir():
        cached = cache.find(model)
        if cached is None:
            raise EngineLoadError(f"{folder}: no such folder for model {model}, and the weight cache does not know it")
        logger.warning("model folder is away, asking the weight cache", extra={"model": model, "folder": str(folder)})
        return cached
    manifest = read_manifest(folder, model)
    # The cache takes what is listed. What lies beside it unlisted is refused here, as it is without a cache.
    manifest.require((name for name in (INDEX, GENERATION) if (folder / name).exists()), folder / MANIFEST)
    return manifest
