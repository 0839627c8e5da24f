"""Declarations of versions, for tests."""

from __future__ import annotations

from pathlib import Path

from weir.registry.v1 import registry_pb2 as pb

from services.predictor import formats
from services.predictor.files import Files
from services.predictor.port import Model


def spec(*steps: pb.PredictionStep, inputs: str, outputs: str, max_rows: int = 64) -> pb.PredictionSpec:
    """ "x FP32 -1 3, t BYTES -1" are two tensors."""
    return pb.PredictionSpec(steps=steps, inputs=_tensors(inputs), outputs=_tensors(outputs), max_rows=max_rows)


def load(folder: Path, spec: pb.PredictionSpec) -> Model:
    """A version of files that nobody has listed."""
    return formats.load(Files(folder), spec)


def step(format: str, path: str, **options: str) -> pb.PredictionStep:
    """One step of a chain."""
    return pb.PredictionStep(format=format, path=path, options=options)


def _tensors(text: str) -> list[pb.TensorSpec]:
    found = (each.split() for each in text.split(","))
    return [pb.TensorSpec(name=name, datatype=datatype, shape=map(int, shape)) for name, datatype, *shape in found]
