"""What `weir models push` finds out about a model that predicts: which format it is, what it takes and gives, and its
answers to golden rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from libs.children.alone import run_alone
from services.cli.app import Option, UsageError
from services.cli.output import failed

_SECONDS = 300.0
"""For a child that has 120 of processor time."""
_NOT_SAID = -1
_TENSOR = "NAME:DATATYPE:SHAPE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What options say of a model that predicts."""

    format: Annotated[
        str, Option(choices="onnx xgboost lightgbm sklearn", help="Of a model that predicts; else it is found out.")
    ] = ""
    takes: Annotated[
        Sequence[str],
        Option("--input", metavar=_TENSOR, help="What predictions take, where the file does not say it; repeatable."),
    ] = ()
    gives: Annotated[Sequence[str], Option("--output", metavar=_TENSOR, help="What they give; likewise.")] = ()
    max_rows: Annotated[int, Option(least=0, help="Most rows of predictions that run together; 0: none do.")] = (
        _NOT_SAID
    )
    profile: Annotated[str, Option(choices="classical deep", help="Which objectives predictions are held to.")] = ""
    golden: Annotated[
        str, Option(metavar="FILE", complete="file", help="Golden rows, CSV or JSON; else golden.json or golden.csv.")
    ] = ""
    no_golden: Annotated[str, Option(metavar="WHY", help="Why there are none.")] = ""


@dataclass(frozen=True, slots=True)
class Derived:
    """What was found out."""

    spec: Any
    """A `PredictionSpec`."""
    added: Mapping[str, Path]
    """As `libs.artifacts.Options.added`."""
    lines: Sequence[tuple[str, str]]
    """In words."""


def derive(folder: Path, said: Said, place: Path) -> Derived | None:
    """Complete what a folder and options say of a version that predicts; None: it does not.

    :param place: a folder of one's own, for what is to be added.
    :raises FolderError: it cannot be one.
    :raises SystemExit: the model does not fit what is said of it.
    """
    from google.protobuf import json_format
    from weir.registry.v1 import registry_pb2 as pb

    from libs.artifacts import FolderError
    from libs.artifacts.predicting import GOLDEN, begun

    found = begun(folder, said.format)
    if found is None:
        if said != Said():
            raise FolderError(f"{folder} holds no model that predicts")
        return None
    spec, listed = found
    for declared, texts, option in ((spec.inputs, said.takes, "--input"), (spec.outputs, said.gives, "--output")):
        if texts:
            del declared[:]
            declared.extend(pb.TensorSpec(**_tensor(text, option)) for text in texts)
    if said.max_rows != _NOT_SAID:
        spec.max_rows = said.max_rows
    known = said.max_rows != _NOT_SAID or not {"max_rows", "maxRows"}.isdisjoint(listed)
    spec.profile = said.profile or spec.profile or "classical"
    golden = _golden(folder, said, spec)
    if golden is None:
        spec.golden = ""
    to = place / GOLDEN[0]
    told = _child(
        {
            "folder": str(folder.resolve()),
            "prediction": json_format.MessageToDict(spec, preserving_proto_field_name=True),
            "max_rows": spec.max_rows if known else None,
            "golden": str(golden.resolve()) if golden else "",
            "to": str(to),
        }
    )
    whole: Any = json_format.ParseDict(told["prediction"], pb.PredictionSpec())
    added: dict[str, Path] = {}
    if golden and (told["answered"] or not golden.resolve().is_relative_to(folder.resolve())):
        whole.golden, added = GOLDEN[0], {GOLDEN[0]: to}
    elif golden:
        whole.golden = golden.resolve().relative_to(folder.resolve()).as_posix()
    return Derived(whole, added, _lines(whole, told, golden))


def _golden(folder: Path, said: Said, spec: Any) -> Path | None:
    """The file of golden rows; None: it is said why there are none."""
    from libs.artifacts import FolderError
    from libs.artifacts.predicting import GOLDEN

    if said.golden and said.no_golden:
        raise UsageError("--golden and --no-golden exclude one another")
    if said.golden:
        return Path(said.golden)
    spec.no_golden_reason = said.no_golden or spec.no_golden_reason
    if spec.no_golden_reason:
        return None
    for name in (spec.golden,) if spec.golden else GOLDEN:
        if (folder / name).is_file():
            return folder / name
    wanted = spec.golden or " or ".join(GOLDEN)
    raise FolderError(
        f"{folder} has no golden rows ({wanted}); --golden names some, --no-golden says why there are none"
    )


def _child(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Libraries that parse a stranger's file do it in a process of their own."""
    try:
        tried = run_alone("services.predictor.derive", json.dumps(asked).encode(), seconds=_SECONDS)
    except TimeoutError:
        raise failed(f"the model could not be read within {_SECONDS:.0f} s") from None
    if tried.returncode:
        why = f"signal {-tried.returncode}" if tried.returncode < 0 else tried.stderr.decode(errors="replace")[-500:]
        raise failed(f"the process that read the model died: {why}")
    told: dict[str, Any] = json.loads(tried.stdout)
    if "fault" in told:
        raise failed(told["fault"])
    return told


def _tensor(text: str, option: str) -> dict[str, Any]:
    name, _, rest = text.partition(":")
    datatype, _, shape = rest.partition(":")
    sizes = shape.split("x") if shape else []
    try:
        return {"name": name, "datatype": datatype, "shape": [int(size) for size in sizes]}
    except ValueError:
        raise UsageError(f"{option} {text}: expected NAME, NAME:DATATYPE or NAME:DATATYPE:-1x30") from None


def _lines(spec: Any, told: Mapping[str, Any], golden: Path | None) -> list[tuple[str, str]]:
    from libs.resources.schemas import schema_sha256

    lines = [
        ("model", " → ".join(f"{step.path} ({step.format})" for step in spec.steps) + f", read by {told['library']}")
    ]
    for what, tensors in (("input", spec.inputs), ("output", spec.outputs)):
        lines += [(what, tensor_in_words(each)) for each in tensors]
    lines.append(("schema", schema_sha256(spec)[:12]))
    lines.append(("rows", f"at most {spec.max_rows} together" if spec.max_rows else "none: each request runs alone"))
    if golden:
        answers = f", answers of {told['library']}" if told["answered"] else ", which it gives"
        lines.append(("golden", f"{told['rows']} rows of {golden.name}{answers}"))
    else:
        lines.append(("golden", f"none: {spec.no_golden_reason}"))
    return lines


def tensor_in_words(tensor: Any) -> str:
    """ "features FP32 [-1, 3]: age, city (categories), income"."""
    columns = [each.name + (" (categories)" if each.categorical else "") for each in tensor.columns]
    shown = ", ".join(columns[:8]) + (f" and {len(columns) - 8} more" if len(columns) > 8 else "")
    return f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" + (f": {shown}" if shown else "")
