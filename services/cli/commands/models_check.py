"""`weir models check`: whether engines can serve a folder, without loading it. `weir models push` asks the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from services.cli.app import Argument, Json, Option, say
from services.cli.commands.models_registry import ask_alone
from services.cli.output import failed, print_json

ENGINES = "torch vllm tensorrt_llm simulated"
_REAL = ENGINES.split()[:-1]


def check(
    folder: Annotated[Path, Argument("The model's folder.", complete="file")],
    context: Annotated[int, Option(least=0, help="Tokens of a sequence; 0: as many as the model was made for.")] = 0,
    engine: Annotated[str, Option(choices=ENGINES, help="Only whether this one can.")] = "",
    as_json: Json = False,
) -> None:
    """Say for each engine whether it can serve a folder, and why not. Exit code 1: none of them can.

    Looked at are configuration, tokenizer, chat template and the headers of the weights; no mesh is needed. What vLLM
    and TensorRT-LLM say when they load a model is not known here.
    """
    from libs.artifacts import FolderError

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
    if not set(can).intersection(_REAL) and engine not in can:
        raise SystemExit(1)


def ask(folder: Path, context: int) -> dict[str, Any]:
    """What `services.worker.check` says.

    :raises FolderError: the folder makes no version.
    :raises SystemExit: it cannot be read.
    """
    from libs.artifacts.files import paths_in

    given = {"folder": str(folder.resolve()), "paths": paths_in(folder), "context": context}
    return ask_alone("services.worker.check", given)


def in_words(told: dict[str, Any]) -> list[str]:
    """A line for each verdict, and below it one for each reason."""
    from libs.artifacts.progress import size_in_words

    lines = []
    for each in told["verdicts"]:
        sizes = [
            f"{size_in_words(each[name])} for {what}"
            for name, what in (("weight_bytes", "weights"), ("kv_bytes", "keys and values of one whole sequence"))
            if each[name]
        ]
        outcome = "cannot serve it" if each["reasons"] else "can serve it, as far as is known before it loads it"
        lines.append(f"{each['engine']}: {outcome}" + (f"; memory: {' and '.join(sizes)}" if sizes else ""))
        lines += [f"  {reason}" for reason in each["reasons"]]
        lines += [f"  ({note})" for note in each["notes"] if not each["reasons"]]
    return [*lines, *told["notes"]]


def against(told: dict[str, Any], engines: Collection[str]) -> Sequence[str]:
    """Why none of these engines can serve it; nothing where one can.

    :param engines: those of its pool; none: nobody knows, so any but the simulated one.
    """
    asked = [each for each in told["verdicts"] if each["engine"] in (engines or _REAL)]
    if not asked or not all(each["reasons"] for each in asked):
        return ()
    return [f"{each['engine']}: {reason}" for each in asked for reason in each["reasons"]]
