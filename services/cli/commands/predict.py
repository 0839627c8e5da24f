"""`weir predict`."""

from __future__ import annotations

import asyncio
import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from libs.rows import RowsError
from libs.rows import parts_of as csv_parts
from libs.tables import terminal_width
from services.cli import config, files
from services.cli.app import Argument, Option, UsageError, warn
from services.cli.output import print_json, table_lines


def predict(
    model: Annotated[str, Argument("An alias or a version.")],
    file: Annotated[str, Argument("What to ask about; standard input by default.", complete="file")] = "-",
    as_csv: Annotated[bool, Option("--csv", "Rows, with or without a head, in and out.")] = False,
    skip_head: Annotated[bool, Option("--skip-head", "The first line names a matrix's columns, in order.")] = False,
    as_json: Annotated[bool, Option("--json", "Inputs by name, as nested lists; outputs likewise.")] = False,
    rows: Annotated[int, Option(help="Most rows of a file of rows that go in one call.", least=1)] = 64,
    tenant: Annotated[str, Option(help="Whose development key to use.")] = "acme",
    key: Annotated[str, Option(env="WEIR_KEY", help="A key to use instead.")] = "",
    user: Annotated[str, Option(help="Whom it is for: keeps its arm of a rollout.")] = "",
    timeout: Annotated[float, Option(help="Seconds for each call.")] = 10.0,
) -> None:
    """Ask a model for predictions through the edge.

    A row of a CSV file is a row of the model's one matrix, or has a column per input, named in its head; the answer is
    a table on a terminal, and such a file elsewhere. Columns of a matrix are put in order by a head where the model has
    names for them, and others are left out; where it has none a head is refused unless you say that they are in the
    model's order (--skip-head). With --json inputs are an object by name, {"features": [[…]]} or columns by theirs, and
    so are the outputs.
    """
    if as_csv == as_json:
        raise UsageError("say what the file holds: --csv or --json, one of them")
    text, _ = files.read_text(Path(file))
    mesh = config.locate()
    given: dict[str, Any] = {
        "mesh": mesh,
        "key": key or mesh.key_of(tenant),
        "model": model,
        "user": user,
        "timeout": timeout,
    }
    if as_json:
        (told,) = asyncio.run(_ask(_inputs(text), rows, **given))
        print_json({"outputs": told.lists(), **_about(told)})
        return
    lines = list(csv.reader(text.splitlines()))
    predictions = asyncio.run(_ask(lines, rows, skip_head=skip_head, **given))
    _write_rows([each.lists() for each in predictions])
    if predictions:
        flags = sorted({flag for each in predictions for flag in each.degraded})
        warn(f"({predictions[-1].version}{', degraded: ' + ', '.join(flags) if flags else ''})")


def parts_of(
    lines: Sequence[Sequence[str]], tensors: Sequence[Any], rows: int, *, skip_head: bool = False
) -> Iterator[dict[str, list[Any]]]:
    """As `libs.rows.parts_of`.

    :raises UsageError: the file does not fit them; the message says which line or column.
    """
    try:
        yield from csv_parts(lines, tensors, rows, skip_head=skip_head)
    except RowsError as error:
        raise UsageError(str(error)) from error


async def _ask(
    given: Mapping[str, Any] | Sequence[Sequence[str]],
    rows: int,
    *,
    mesh: Any,
    key: str,
    model: str,
    skip_head: bool = False,
    **how: Any,
) -> list[Any]:
    """Predictions for inputs by name, or for the lines of a file, part by part."""
    from weir.client import Client, RetryPolicy

    # A version may still be loading, which is told with when to come back: the call's time is the bound.
    patient = RetryPolicy(attempts=1000)
    async with Client(urlsplit(mesh.edge_url).netloc, ca=mesh.tls.ca, api_key=key, retries=patient) as client:
        if isinstance(given, Mapping):
            return [await client.predict(model, given, **how)]
        declared = await client.inputs(model, timeout=how["timeout"])
        parts = parts_of(given, declared, rows, skip_head=skip_head)
        return [await client.predict(model, part, **how) for part in parts]


def _inputs(text: str) -> dict[str, Any]:
    try:
        inputs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"that is no JSON: {error}") from error
    if not isinstance(inputs, dict) or not all(isinstance(each, list) for each in inputs.values()):
        raise UsageError('inputs are an object of lists by name: {"features": [[1.5, 2]]}')
    return inputs


def _about(told: Any) -> dict[str, Any]:
    stages = {name: round(seconds * 1000, 3) for name, seconds in told.stages.items()}
    about = {"model_version": told.version, "arm": told.arm, "degraded": list(told.degraded), "trace": told.trace_id}
    return {**about, "batch_rows": told.batch_rows, "stages_ms": stages}


def _write_rows(parts: Sequence[Mapping[str, list[Any]]]) -> None:
    """Outputs side by side, those of several columns as `scores.0`, `scores.1`, …: a table on a terminal that is wide
    enough, else CSV."""
    titles: list[str] = []
    lines: list[list[Any]] = []
    for part in parts:
        columns = {name: values for name, values in part.items() if isinstance(values, list)}
        titles = titles or [title for name, values in columns.items() for title in _titles(name, values)]
        lines += ([each for value in line for each in _flat(value)] for line in zip(*columns.values(), strict=True))
    shown = _table(titles, lines) if titles and sys.stdout.isatty() else []
    if shown and max(map(len, shown)) <= terminal_width():
        print(*shown, sep="\n")
    elif titles:
        csv.writer(sys.stdout).writerows([titles, *lines])


def _table(titles: Sequence[str], lines: Sequence[Sequence[Any]]) -> list[str]:
    rows = [(at, *map(_short, line)) for at, line in enumerate(lines, 1)]
    return table_lines(("ROW", *titles), rows, wide=True)


def _short(value: Any) -> Any:
    """As people read it; CSV and JSON have every digit."""
    return f"{value:.6g}" if isinstance(value, float) else value


def _titles(name: str, values: list[Any]) -> list[str]:
    width = len(list(_flat(values[0]))) if values else 1
    return [f"{name}.{at}" for at in range(width)] if values and isinstance(values[0], list) else [name]


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    else:
        yield value.decode("utf-8", "replace") if isinstance(value, bytes) else value
