"""What `weir models push` is told of a model that predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from services.cli.app import Option, UsageError
from services.cli.commands.models_registry import ask_alone

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


def derive(folder: Path, said: Said, place: Path) -> Any:
    """What is found out of a folder and of this (see `libs.artifacts.deriving`); None: it holds no model that predicts.

    :raises FolderError: it cannot be one.
    :raises SystemExit: the model does not fit what is said of it.
    """
    from libs.artifacts import deriving

    if said.golden and said.no_golden:
        raise UsageError("--golden and --no-golden exclude one another")
    declared = deriving.Declared(
        format=said.format,
        inputs=tuple(_tensor(text, "--input") for text in said.takes),
        outputs=tuple(_tensor(text, "--output") for text in said.gives),
        max_rows=None if said.max_rows == _NOT_SAID else said.max_rows,
        profile=said.profile,
        golden=said.golden,
        no_golden=said.no_golden,
    )
    return deriving.derive(folder, declared, place, _ask)


def _ask(asked: Mapping[str, Any]) -> dict[str, Any]:
    return ask_alone("services.predictor.derive", asked)


def _tensor(text: str, option: str) -> Any:
    from weir.registry.v1 import registry_pb2 as pb

    name, _, rest = text.partition(":")
    datatype, _, shape = rest.partition(":")
    sizes = shape.split("x") if shape else []
    try:
        return pb.TensorSpec(name=name, datatype=datatype, shape=[int(size) for size in sizes])
    except ValueError:
        raise UsageError(f"{option} {text}: expected NAME, NAME:DATATYPE or NAME:DATATYPE:-1x30") from None
