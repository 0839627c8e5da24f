"""From a version's files to a model that is tested and warm. Imports heavy libraries: never on the event loop."""

from __future__ import annotations

import os
from dataclasses import dataclass

from weir.registry.v1 import registry_pb2

from services.predictor.files import Files
from services.predictor.port import Model

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that gave its golden rows' outputs.

    :ivar samples: (rows, seconds) of warm runs.
    """

    model: Model
    samples: list[tuple[int, float]]


def prepare(files: Files, spec: registry_pb2.PredictionSpec) -> Prepared:
    """Load the model, run its golden rows, warm it up.

    :raises LoadError: it cannot be loaded, or does not give what it gave when it was made.
    """
    from services.predictor.formats import load
    from services.predictor.golden import check
    from services.predictor.warmup import samples

    model = load(files, spec)
    try:
        like = check(model, files.read(spec.golden)) if spec.golden else None
        return Prepared(model, samples(model, like))
    except BaseException:
        model.close()
        raise


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
