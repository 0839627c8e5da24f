"""What a model version may declare that answers unary predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from weir.registry.v1 import registry_pb2 as pb

from libs.resources.checks.bounds import check_choice, check_count, check_range, check_required, entry, shown
from libs.resources.checks.faults import Fault, check_name, check_text, check_version
from libs.resources.checks.values import check_rules
from libs.resources.schemas import schema_sha256

if TYPE_CHECKING:
    from libs.resources.snapshot import RegistrySnapshot

FORMATS = ("onnx", "xgboost", "lightgbm", "sklearn", "torch", "python")
LANES = ("inline", "thread", "process")
PROFILES = ("classical", "deep")
DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "BF16", "FP32", "FP64", "BYTES"),
)
"""Of the Open Inference Protocol."""
MAX_ROWS = 65_536
_MAX_STEPS = 8
_MAX_TENSORS = 256
_MAX_DIMENSIONS = 8
_MAX_SIZE = 2**31 - 1
_MAX_OPTIONS = 32
_MAX_SMALLER = 4
_MAX_CACHE = 86_400
_MAX_TEXT = 256
_MAX_COLUMNS = 4096
_MAX_CATEGORIES = 4096


def check_prediction(message: pb.ModelVersion, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """Every fault of `message.prediction`; whether the formats can load it is seen where it is loaded."""
    path, spec = "spec.prediction", message.prediction
    files = {artifact.path for artifact in message.artifacts}
    yield from check_count(f"{path}.steps", spec.steps, _MAX_STEPS, least=1)
    for number, step in enumerate(spec.steps[:_MAX_STEPS]):
        yield from _check_step(f"{path}.steps[{number}]", step, files)
    yield from check_range(f"{path}.max_rows", spec, 0, MAX_ROWS)
    yield from _check_tensors(f"{path}.inputs", spec.inputs, rows=spec.max_rows > 0)
    for number, tensor in enumerate(spec.inputs[:_MAX_TENSORS]):
        yield from check_rules(f"{path}.inputs[{number}]", tensor, rows=spec.max_rows > 0)
    yield from _check_tensors(f"{path}.outputs", spec.outputs, rows=spec.max_rows > 0)
    for number, tensor in enumerate(spec.outputs[:_MAX_TENSORS]):
        if tensor.rules:
            yield Fault(f"{path}.outputs[{number}].rules", "only inputs have rules")
    yield from check_choice(f"{path}.lane", spec.lane, (*LANES, ""))
    yield from check_choice(f"{path}.profile", spec.profile, PROFILES)
    yield from check_range(f"{path}.cache_seconds", spec, 0, _MAX_CACHE)
    for name in ("golden", "prior"):
        if getattr(spec, name):
            yield from _check_file(f"{path}.{name}", getattr(spec, name), files)
    schema = schema_sha256(spec)
    if message.schema_sha256 not in ("", schema):
        yield Fault("spec.schema_sha256", f"is {shown(message.schema_sha256)}; its inputs and outputs have {schema!r}")
    yield from check_text(f"{path}.no_golden_reason", spec.no_golden_reason, _MAX_TEXT)
    if not spec.golden and not spec.no_golden_reason:
        yield Fault(f"{path}.golden", "must name golden rows, or no_golden_reason say why there are none")
    if spec.golden and spec.no_golden_reason:
        yield Fault(f"{path}.no_golden_reason", "must be empty where there are golden rows")
    yield from check_count(f"{path}.smaller", spec.smaller, _MAX_SMALLER)
    for number, name in enumerate(spec.smaller[:_MAX_SMALLER]):
        yield from _check_smaller(f"{path}.smaller[{number}]", name, message, snapshot)


def _check_step(path: str, step: pb.PredictionStep, files: set[str]) -> Iterator[Fault]:
    yield from check_choice(f"{path}.format", step.format, FORMATS)
    yield from _check_file(f"{path}.path", step.path, files)
    yield from check_count(f"{path}.options", step.options, _MAX_OPTIONS)
    for name, value in sorted(step.options.items())[:_MAX_OPTIONS]:
        yield from check_text(entry(f"{path}.options", name), name, _MAX_TEXT)
        yield from check_text(entry(f"{path}.options", name), value, _MAX_TEXT)


def _check_file(field: str, path: str, files: set[str]) -> Iterator[Fault]:
    yield from check_required(field, path)
    if path and path not in files:
        yield Fault(field, f"{shown(path)} is not among the artifacts")


def _check_tensors(path: str, tensors: Sequence[pb.TensorSpec], *, rows: bool) -> Iterator[Fault]:
    yield from check_count(path, tensors, _MAX_TENSORS, least=1)
    seen: set[str] = set()
    for number, tensor in enumerate(tensors[:_MAX_TENSORS]):
        field = f"{path}[{number}]"
        yield from check_required(f"{field}.name", tensor.name)
        yield from check_text(f"{field}.name", tensor.name, _MAX_TEXT)
        if tensor.name in seen:
            yield Fault(f"{field}.name", f"the tensor {shown(tensor.name)} appears twice")
        seen.add(tensor.name)
        yield from check_choice(f"{field}.datatype", tensor.datatype, DATATYPES)
        yield from check_count(f"{field}.shape", tensor.shape, _MAX_DIMENSIONS, least=1)
        for dimension, size in enumerate(tensor.shape[:_MAX_DIMENSIONS]):
            if not (size == -1 or 1 <= size <= _MAX_SIZE):
                yield Fault(f"{field}.shape[{dimension}]", f"must be -1 or between 1 and {_MAX_SIZE}")
        if rows and tensor.shape and tensor.shape[0] != -1:
            yield Fault(f"{field}.shape[0]", "must be -1, the rows, unless max_rows is 0")
        yield from _check_columns(f"{field}.columns", tensor)


def _check_columns(path: str, tensor: pb.TensorSpec) -> Iterator[Fault]:
    if not tensor.columns:
        return
    if len(tensor.shape) != 2 or tensor.shape[1] != len(tensor.columns):
        yield Fault(path, f"must be as many as dimension 1 of [-1, n]; there are {len(tensor.columns)}")
    yield from check_count(path, tensor.columns, _MAX_COLUMNS)
    seen: set[str] = set()
    for number, column in enumerate(tensor.columns[:_MAX_COLUMNS]):
        field = f"{path}[{number}]"
        yield from check_text(f"{field}.name", column.name, _MAX_TEXT)
        if column.name and column.name in seen:
            yield Fault(f"{field}.name", f"the column {shown(column.name)} appears twice")
        seen.add(column.name)
        yield from check_count(f"{field}.categories", column.categories, _MAX_CATEGORIES)
        for at, category in enumerate(column.categories[:_MAX_CATEGORIES]):
            yield from check_text(f"{field}.categories[{at}]", category, _MAX_TEXT)
        if column.categories and not column.categorical:
            yield Fault(f"{field}.categories", "only categorical columns have categories")


def _check_smaller(field: str, name: str, message: pb.ModelVersion, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    own, _, version = name.partition("@")
    if any(check_name("", own)) or any(check_version("", version)):
        yield Fault(field, "must be a model version, name@version")
    elif (own, version) == (message.name, message.version):
        yield Fault(field, "a version cannot stand in for itself")
    elif (other := snapshot.model_versions.get(name)) is not None and not _alike(message.prediction, other.prediction):
        yield Fault(field, f"{shown(name)} must take the same inputs and give the same outputs")


def _alike(one: pb.PredictionSpec, other: pb.PredictionSpec) -> bool:
    return _said(one.inputs) == _said(other.inputs) and _said(one.outputs) == _said(other.outputs)


def _said(tensors: Sequence[pb.TensorSpec]) -> set[tuple[str, str, tuple[int, ...]]]:
    return {(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in tensors}
