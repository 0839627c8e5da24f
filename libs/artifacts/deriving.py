"""What a push finds out about a model that predicts: which format it is, what it takes and gives, and its answers to
golden rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.files import FolderError
from libs.artifacts.predicting import GOLDEN, begun
from libs.resources.schemas import schema_sha256

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Asks `services.predictor.derive`, a process of its own: libraries that parse a stranger's file do it there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a person says of a model that predicts; empty and None leave it to its file and its manifest. `golden` and
    `no_golden` exclude one another."""

    format: str = ""
    inputs: Sequence[pb.TensorSpec] = ()
    outputs: Sequence[pb.TensorSpec] = ()
    max_rows: int | None = None
    profile: str = ""
    golden: str = ""
    """A file of golden rows."""
    no_golden: str = ""
    """Why there are none."""


@dataclass(frozen=True, slots=True)
class Derived:
    """What was found out."""

    spec: pb.PredictionSpec
    added: Mapping[str, Path]
    """As `libs.artifacts.Options.added`."""
    lines: Sequence[tuple[str, str]]
    """In words."""


def derive(folder: Path, said: Declared, place: Path, ask: Ask) -> Derived | None:
    """Complete what a folder and a person say of a version that predicts; None: it does not.

    :param place: a folder of one's own, for what is to be added.
    :raises FolderError: it cannot be one. Further, what `ask` raises.
    """
    found = begun(folder, said.format)
    if found is None:
        if said != Declared():
            raise FolderError(f"{folder} holds no model that predicts")
        return None
    spec, listed = found
    for declared, tensors in ((spec.inputs, said.inputs), (spec.outputs, said.outputs)):
        if tensors:
            del declared[:]
            declared.extend(tensors)
    if said.max_rows is not None:
        spec.max_rows = said.max_rows
    known = said.max_rows is not None or not {"max_rows", "maxRows"}.isdisjoint(listed)
    spec.profile = said.profile or spec.profile or "classical"
    golden = _golden(folder, said, spec)
    if golden is None:
        spec.golden = ""
    to = place / GOLDEN[0]
    told = ask(
        {
            "folder": str(folder.resolve()),
            "prediction": json_format.MessageToDict(spec, preserving_proto_field_name=True),
            "max_rows": spec.max_rows if known else None,
            "golden": str(golden.resolve()) if golden else "",
            "to": str(to),
        }
    )
    whole = json_format.ParseDict(told["prediction"], pb.PredictionSpec())
    added: dict[str, Path] = {}
    if golden and (told["answered"] or not golden.resolve().is_relative_to(folder.resolve())):
        whole.golden, added = GOLDEN[0], {GOLDEN[0]: to}
    elif golden:
        whole.golden = golden.resolve().relative_to(folder.resolve()).as_posix()
    return Derived(whole, added, _lines(whole, told, golden))


def _golden(folder: Path, said: Declared, spec: pb.PredictionSpec) -> Path | None:
    """The file of golden rows; None: it is said why there are none."""
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


def _lines(spec: pb.PredictionSpec, told: Mapping[str, Any], golden: Path | None) -> list[tuple[str, str]]:
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


def tensor_in_words(tensor: pb.TensorSpec) -> str:
    """ "features FP32 [-1, 3]: age, city (categories), income"."""
    columns = [each.name + (" (categories)" if each.categorical else "") for each in tensor.columns]
    shown = ", ".join(columns[:8]) + (f" and {len(columns) - 8} more" if len(columns) > 8 else "")
    return f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" + (f": {shown}" if shown else "")
