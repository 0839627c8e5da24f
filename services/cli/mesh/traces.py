"""`weir trace`: what the collector kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import msgspec

from libs.traces import Summary, assemble, read_trace, recent_traces, render, summary, trace_of
from services.cli.app import say
from services.cli.output import failed, print_found, print_json

_COLUMNS = ("TIME (UTC)", "TENANT", "MODEL", "DURATION", "END", "TRACE", "SPANS", "NAME")
_WIDE = ("SPANS", "NAME")
_MOST = 100_000
"""Traces that are looked at; collectors keep fewer."""
_IDS = "Trace ids are also in answers (`trace_id`), log lines, `weir audit tail --json` and traceparents."


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which traces are listed."""

    tenant: str = ""
    """Empty: everybody's."""
    failed: bool = False
    """Only those in which something failed."""
    slowest: bool = False
    """Those that took longest first, else the latest."""
    count: int = 20


def show(folder: Path, asked: str, *, output: str) -> None:
    """Prints one trace as a tree: of this id, or of the request of this id.

    :raises SystemExit: there is no such trace.
    """
    if (trace_id := trace_of(folder, asked)) is None:
        raise failed(f"no trace of that id, nor of a request of it, in {folder}")
    tree = assemble(read_trace(folder, trace_id))
    if output == "json":
        ordered = [{"depth": depth, **msgspec.to_builtins(span)} for depth, span in tree.spans()]
        print_json({"trace_id": trace_id, "one_tree": tree.is_one_tree, "spans": ordered})
    else:
        say(render(tree))


def listed(folder: Path, wanted: Wanted, *, output: str) -> None:
    """Prints a line for each."""
    found = list(islice(_found(folder, wanted), wanted.count))
    told = [{"trace_id": each, "one_tree": whole, **said._asdict()} for each, whole, said in found]
    rows = []
    for trace_id, _, said in found:
        began, lasted = datetime.fromtimestamp(said.start_ns / 1e9, UTC), f"{said.seconds * 1e3:.1f} ms"
        end = said.error or "ok"
        rows.append((f"{began:%H:%M:%S}", said.tenant, said.model, lasted, end, trace_id, said.spans, said.name))
    empty, least = f"no such traces in {folder}", ("MODEL", "TENANT")
    print_found(output, told, _COLUMNS, rows, empty=empty, extra=_WIDE, least=least)
    if output != "json":
        print(_IDS)


def _found(folder: Path, wanted: Wanted) -> Iterator[tuple[str, bool, Summary]]:
    """(id, whether it is one tree, what it is about) of each, in order; read as far as they are taken."""
    trees = ((each, assemble(read_trace(folder, each))) for each in recent_traces(folder, _MOST))
    every = ((each, tree.is_one_tree, summary(tree)) for each, tree in trees if tree.roots)
    fitting = (each for each in every if wanted.tenant in ("", each[2].tenant) and (each[2].error or not wanted.failed))
    return iter(sorted(fitting, key=lambda each: -each[2].seconds)) if wanted.slowest else fitting
