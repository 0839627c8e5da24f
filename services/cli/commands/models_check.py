"""`weir models check`: whether engines can serve a folder, without loading it. `weir models push` asks the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from services.cli.app import Argument, Json, Option, say
from services.cli.commands.models_registry import ask_alone
from services.cli.output import failed, print_json


def check(
    folder: Annotated[Path, Argument("The model's folder.", complete="file")],
    context: Annotated[int, Option(least=0, help="Tokens of a sequence; 0: as many as the model was made for.")] = 0,
    engine: Annotated[str, Option(choices="torch vllm tensorrt_llm simulated", help="Only whether this one can.")] = "",
    as_json: Json = False,
) -> None:
    """Say for each engine whether it can serve a folder, and why not. Exit code 1: none of them can.

    Looked at are configuration, tokenizer, chat template and the headers of the weights; no mesh is needed. What vLLM
    and TensorRT-LLM say when they load a model is not known here.
    """
    from libs.artifacts import FolderError
    from libs.artifacts.verdicts import REAL, in_words

    try:
        told = ask(folder, context)
    except FolderError as error:
        raise failed(str(error)) from error
    told["verdicts"] = [each for each in told["verdicts"] if engine in ("", each["engine"])]
    can = [each["engine"] for each in told["verdicts"] if not each["reasons"]]
    if as_json:
        print_json({**told, "can": can})
    else:
        for line in in_words(told):
            say(line)
    if not set(can).intersection(REAL) and engine not in can:
        raise SystemExit(1)


def ask(folder: Path, context: int) -> dict[str, Any]:
    """What `services.worker.check` says.

    :raises FolderError: the folder makes no version.
    :raises SystemExit: it cannot be read.
    """
    from libs.artifacts.files import paths_in

    given = {"folder": str(folder.resolve()), "paths": paths_in(folder), "context": context}
    return ask_alone("services.worker.check", given)
