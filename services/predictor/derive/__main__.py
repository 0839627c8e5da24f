"""`python -m services.predictor.derive`: read a model of a folder in a process that may be lost.

The folder may be a stranger's, and libraries parse what lies in it: so it is not read where keys are. Limits that the
operating system keeps; one JSON object from standard input, one to standard output:

    {"folder": "…", "prediction": {…}, "max_rows": 256, "golden": "rows.csv", "to": "golden.json"}
    {"prediction": {…}, "library": "xgboost 3.2.0", "rows": 8, "answered": true}     or     {"fault": "…"}

`prediction` is a `PredictionSpec` in protobuf's JSON form, of which its steps are known; `max_rows` counts where that
says none, and may be null. Golden rows with their outputs are written to `to`; `answered` says whether some of these
are the library's answers, and not what the file said already.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import json_format
from weir.registry.v1 import registry_pb2 as pb

from services.predictor import formats, golden
from services.predictor.derive import natives, rows
from services.predictor.files import Files
from services.predictor.formats.step import check_fits
from services.predictor.port import LoadError, ModelError, Tensor, Tensors
from services.predictor.tensors import DTYPES

SECONDS = 120
"""Of processor time."""
MEMORY = 16 << 30
"""Bytes of address space, of which libraries take more than they use."""
MAX_ROWS = 256
_FILE = 64 << 20

Run = Callable[[Tensors], dict[str, np.ndarray]]


def main() -> int:
    """The command; its exit status."""
    for what, most in (
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, _FILE),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    # Libraries print; what they say is no answer.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asked = json.load(sys.stdin)
    spec = json_format.ParseDict(asked["prediction"], pb.PredictionSpec())
    path = Path(asked["golden"]) if asked["golden"] else None
    try:
        answer = derive(Path(asked["folder"]), spec, asked["max_rows"], path, Path(asked["to"]))
        answer["prediction"] = json_format.MessageToDict(spec, preserving_proto_field_name=True)
    except (LoadError, ModelError) as error:
        answer = {"fault": str(error)}
    except ImportError as error:
        answer = {"fault": f"the model cannot be read here, where there is no {error.name}"}
    with out:
        json.dump(answer, out)
    return 0


def derive(folder: Path, spec: pb.PredictionSpec, max_rows: int | None, path: Path | None, to: Path) -> dict[str, Any]:
    """Complete what is said of a version, and write its golden rows with their outputs.

    :param max_rows: of a version that does not say it; None: `MAX_ROWS`, or 0 where the model takes its inputs whole.
    :param path: golden rows, if there are any; their outputs may be missing.
    :returns: `library`, `rows` and `answered`, as above.
    :raises LoadError: the model cannot be read, or what is said of it does not fit.
    """
    native, files = None, Files(folder)
    if len(spec.steps) == 1 and spec.steps[0].format in natives.KNOWN:
        native = natives.read(files, spec.steps[0], spec)
        _lay(spec.inputs, native.inputs, "input")
        if native.exact:
            _check_inputs(spec.inputs, native.inputs)
        spec.steps[0].options.update(native.options)
        spec.max_rows = spec.max_rows or (_rows(native) if max_rows is None else max_rows)
    elif not spec.inputs or not spec.outputs:
        known = ", ".join(natives.KNOWN)
        raise LoadError(
            f"inputs and outputs are found out of one step of {known}; the manifest must say those of others"
        )
    cases = rows.read(path, spec.inputs, spec.max_rows) if path else []
    given = [rows.arrays(each, spec.inputs) for each in cases]
    if native is not None and not _whole(spec.outputs):
        tried = {}
        if not _whole(native.outputs):
            tried = _run(native.run, given[0] if given else _zeros(spec), native.library)
        _lay(spec.outputs, [_given(each, tried.get(each.name), spec) for each in native.outputs], "output")
    model = formats.load(files, spec)
    try:
        run, library = (native.run, native.library) if native is not None else (model.run, "the predictor")
        if cases:
            answers = [_as_declared(_run(run, each, library), spec, each) for each in given]
            to.write_text(json.dumps(rows.recorded(cases, answers)) + "\n", encoding="utf-8")
            golden.check(model, to.read_bytes())
    finally:
        model.close()
    count = sum(len(next(iter(each.values()))) for each in given)
    return {"library": library, "rows": count, "answered": any("outputs" not in each for each in cases)}


def _lay(declared: Any, found: Sequence[pb.TensorSpec], what: str) -> None:
    """Tensors that nobody declared, and what declared ones leave open; whether they fit is seen when they are loaded.

    :raises LoadError: neither the library nor anybody else says what one is.
    """
    names = {each.name: each for each in declared}
    # Of inputs all are needed; of what it gives some are enough.
    if what == "input" and (unknown := names.keys() - {each.name for each in found}):
        raise LoadError(f"the model has no input {min(unknown)!r}; it takes {', '.join(repr(x.name) for x in found)}")
    for each in found:
        own = names.get(each.name)
        if own is None:
            if names and what == "output":
                continue
            own = declared.add(name=each.name)
        own.datatype = own.datatype or each.datatype
        if not own.shape:
            own.shape.extend(each.shape)
        if not own.columns and len(own.shape) == 2 and len(each.columns) in (own.shape[1], 0):
            own.columns.extend(each.columns)
    for own in declared:
        if not own.datatype or not own.shape:
            raise LoadError(f"nothing says what {what} {own.name!r} is: --{what} {own.name}:DATATYPE:SHAPE does")


def _check_inputs(declared: Sequence[pb.TensorSpec], found: Sequence[pb.TensorSpec]) -> None:
    known = {each.name: each for each in found}
    for each in declared:
        own = known[each.name]
        check_fits("input", Tensor(each.name, each.datatype, tuple(each.shape)), own.datatype, own.shape)


def _rows(native: natives.Native) -> int:
    every = [*native.inputs, *(each for each in native.outputs if each.shape)]
    return MAX_ROWS if all(not each.shape or each.shape[0] == -1 for each in every) else 0


def _whole(tensors: Sequence[pb.TensorSpec]) -> bool:
    """Whether all is said of them."""
    return bool(tensors) and all(each.datatype and each.shape for each in tensors)


def _given(known: pb.TensorSpec, tried: np.ndarray | None, spec: pb.PredictionSpec) -> pb.TensorSpec:
    """An output of which the library says no more than it gave."""
    made = pb.TensorSpec()
    made.CopyFrom(known)
    if tried is not None:
        made.datatype = known.datatype or rows.datatype_of(tried)
        made.shape[:] = known.shape or ([-1, *tried.shape[1:]] if spec.max_rows else tried.shape)
    return made


def _zeros(spec: pb.PredictionSpec) -> dict[str, np.ndarray]:
    made = {}
    for each in spec.inputs:
        shape = [1 if size == -1 else size for size in each.shape]
        made[each.name] = np.full(shape, b"" if each.datatype == "BYTES" else 0, DTYPES[each.datatype])
    return made


def _run(run: Run, given: Tensors, library: str) -> dict[str, np.ndarray]:
    try:
        return run(given)
    except (LoadError, ModelError):
        raise
    except Exception as error:  # of any library
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
        raise LoadError(f"{library} refuses the golden rows, or zeros where there are none: {what}") from None


def _as_declared(found: Tensors, spec: pb.PredictionSpec, given: Tensors) -> dict[str, np.ndarray]:
    """What is declared of what was given; [rows] and [rows, 1] are the same numbers."""
    count = len(next(iter(given.values())))
    made = {}
    for each in spec.outputs:
        if each.name in found:
            array = found[each.name]
            shape = (count, *each.shape[1:]) if spec.max_rows else array.shape
            made[each.name] = array.reshape(shape) if np.prod(shape) == array.size else array
    return made


if __name__ == "__main__":
    sys.exit(main())
