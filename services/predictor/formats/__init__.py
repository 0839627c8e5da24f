"""Formats of models: a version's files and declaration to something that runs.

    load(files, spec) -> Model

One module per format, imported when it is needed: each has `load(content, wiring) -> Step`, from the bytes of its file
as `Files` verified them, and documents its options.
Nothing here unpickles: a file that is a pickle is refused by name, whatever format it is declared as.
"""

from __future__ import annotations

import io
from functools import partial
from importlib import import_module
from typing import Any

from weir.registry.v1 import registry_pb2 as pb

from libs.model_files import holds_pickle, pickle_fault
from services.predictor.files import Files
from services.predictor.formats.chain import Chain
from services.predictor.formats.step import LoadError, Options, Step, Wiring
from services.predictor.port import Model, Signature, Tensor
from services.predictor.tensors import DTYPES

__all__ = ["FORMATS", "LoadError", "Options", "Step", "Wiring", "load", "signature_of"]

FORMATS = {
    "onnx": "onnx",
    "xgboost": "xgboost",
    "python": "python",
    "lightgbm": "lightgbm",
    "sklearn": "sklearn",
    "torch": "torch",
}
"""By the name of a format, its module here."""
_LIBRARIES = ("lightgbm", "onnxruntime", "scipy", "skops", "torch", "xgboost")
"""What some image leaves out."""


def load(files: Files, spec: pb.PredictionSpec) -> Model:
    """Load a version. Takes seconds, and part of them holds the GIL.

    :raises LoadError: naming the step and what is wrong.
    """
    signature = signature_of(spec)
    steps: list[Step] = []
    tensors = {tensor.name: tensor for tensor in signature.inputs}
    try:
        for number, declared in enumerate(spec.steps, 1):
            given = {tensor.name for step in steps for tensor in step.outputs}
            missing = tuple(tensor for tensor in signature.outputs if tensor.name not in given)
            last = number == len(spec.steps)
            options, named = Options(declared.options), {tensor.name: tensor for tensor in missing}
            beside = partial(files.beside, declared.path)
            wiring = Wiring(tuple(tensors.values()), missing if last else (), options, named, beside)
            try:
                steps.append(_step(files, declared, wiring))
                wiring.options.done()
            except LoadError as error:
                raise LoadError(f"step {number} ({declared.format[:32]}): {error}") from None
            tensors |= {tensor.name: tensor for tensor in steps[-1].outputs}
        return Chain(signature, tuple(steps))
    except BaseException:
        for step in steps:
            step.close()
        raise


def signature_of(spec: pb.PredictionSpec) -> Signature:
    """What the declaration says that the version takes and gives.

    :raises LoadError: it names a datatype that the protocol does not have, or has no steps.
    """
    if not spec.steps:
        raise LoadError("the version declares no steps")
    asked = {step.options["contributions"] for step in spec.steps if "contributions" in step.options}
    return Signature(
        inputs=tuple(_tensor(each) for each in spec.inputs),
        outputs=tuple(_tensor(each, on_request=each.name in asked) for each in spec.outputs),
        max_rows=spec.max_rows,
    )


def _tensor(declared: pb.TensorSpec, on_request: bool = False) -> Tensor:
    if declared.datatype not in DTYPES:
        raise LoadError(f"tensor {declared.name!r}: datatype {declared.datatype[:16]!r} is not known")
    return Tensor(declared.name, declared.datatype, tuple(declared.shape), on_request)


def _step(files: Files, declared: pb.PredictionStep, wiring: Wiring) -> Step:
    if declared.format not in FORMATS:
        raise LoadError(f"the format is not known; there are {', '.join(FORMATS)}")
    content = files.read(declared.path)
    if holds_pickle(declared.path, io.BytesIO(content)):
        raise LoadError(pickle_fault(declared.path))
    step: Step = _module(declared.format).load(content, wiring)
    return step


def _module(named: str) -> Any:
    """The module of a format.

    :raises LoadError: the library that it runs is not installed here.
    """
    try:
        return import_module(f"services.predictor.formats.{FORMATS[named]}")
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _LIBRARIES:
            raise
        raise LoadError(f"this predictor has no {library}: it runs in an image without (docs/predictions.md)") from None
