"""Which versions a predictor has ready, and how they come to its executors."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from weir.registry.v1 import registry_pb2

from libs.clock import Clock
from libs.registry import RegistrySnapshot
from libs.rollouts import desired_versions
from libs.versions.errors import LoadError
from services.predictor.executors import Executors
from services.predictor.files import Files
from services.predictor.formats import LoadError as FormatError
from services.predictor.formats import signature_of
from services.predictor.golden import array_of
from services.predictor.port import Signature, Tensors

VersionOf = Callable[[str], registry_pb2.ModelVersion | None]


def wanted_versions(snapshot: RegistrySnapshot, pool: str, now: float) -> Collection[str]:
    """Versions of the pool that answer predictions and that aliases, rollouts or pins ask for, and those that these
    fall back to. `now`: Unix seconds."""
    versions = snapshot.model_versions
    found: dict[str, None] = {}
    due = [name for name in desired_versions(snapshot, pool, now) if versions[name].HasField("prediction")]
    while due:
        name = due.pop(0)
        known = versions.get(name)
        if name in found or known is None or known.pool != pool or not known.HasField("prediction"):
            continue
        found[name] = None
        due += known.prediction.smaller
    return found


class VersionLoader:
    """Implements `libs.versions.desired.Loader` over the executors. What a version falls back to at last, its prior,
    stays when it is lost or cannot be loaded."""

    def __init__(self, executors: Executors, version_of: VersionOf, clock: Clock) -> None:
        """`version_of` gives a registered version, which declares what it is."""
        self._executors = executors
        self._version_of = version_of
        self._clock = clock
        self._ready: dict[str, None] = {}
        self.priors: dict[str, tuple[Signature, Tensors]] = {}
        """By version: what it takes and gives, and one row of its prior."""

    @property
    def ready(self) -> tuple[str, ...]:
        """Versions that take requests."""
        return tuple(self._ready)

    async def load(self, model: str, folder: str) -> Mapping[str, float]:
        """See `Loader`."""
        version = self._version_of(model)
        if version is None:
            raise LoadError(f"{model}: it is not registered any more")
        began, spec = self._clock.monotonic(), version.prediction
        files = Files.of(version, Path(folder))
        try:
            if spec.prior:
                declared = signature_of(spec)
                self.priors[model] = declared, read_prior(files.read(spec.prior), declared)
            await self._executors.load(model, files, spec)
        except (FormatError, ValueError) as error:
            raise LoadError(f"{model}: {error}") from error
        self._ready[model] = None
        return {"load": self._clock.monotonic() - began}

    async def unload(self, model: str) -> None:
        """See `Loader`."""
        self._ready.pop(model, None)
        await self._executors.unload(model)

    def forget(self, registered: Collection[str]) -> None:
        """Drop what is known of versions that are not registered any more."""
        self._executors.forget(registered)
        for model in self.priors.keys() - set(registered):
            del self.priors[model]


def read_prior(content: bytes, signature: Signature) -> Tensors:
    """The answer of last resort: one row of each output that it names, as in the protocol's REST form.

        {"outputs": [{"name": "score", "datatype": "FP32", "shape": [1, 2], "data": [0.9, 0.1]}]}

    :raises LoadError: the content is not that, or names what the version does not give.
    """
    declared = {tensor.name: tensor for tensor in signature.outputs}
    where = "the prior"
    try:
        given = json.loads(content)["outputs"]
        names = [each["name"] for each in given]
        if not names or not declared.keys() >= set(names):
            raise LoadError(f"{where} must give some of {', '.join(declared)}, and nothing else")
        rows = {name: array_of(given, declared[name], where) for name in names}
    except FormatError as error:
        raise LoadError(str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LoadError(f"{where} cannot be read: {type(error).__name__}") from error
    for name, array in rows.items():
        shape = declared[name].shape
        one = (1, *shape[1:]) if signature.max_rows else shape
        if len(array.shape) != len(one) or any(
            want not in (-1, have) for have, want in zip(array.shape, one, strict=True)
        ):
            raise LoadError(f"{where}: output {name!r} must have the shape {list(one)}, not {list(array.shape)}")
    return rows
