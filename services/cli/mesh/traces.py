"""`weir trace`: what the development collector kept."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from libs.traces import assemble, read_trace, recent_traces, render, summary
from services.cli.app import say
from services.cli.output import failed, print_found, print_json

_COLUMNS = ("TIME (UTC)", "TENANT", "MODEL", "DURATION", "END", "TRACE", "SPANS", "NAME")
_WIDE = ("SPANS", "NAME")
_IDS = "Trace ids are also in answers (`trace_id`), log lines, `weir audit tail --json` and traceparents."


def show(folder: Path, trace_id: str, *, output: str, count: int) -> None:
    """Prints one trace as a tree, or the latest ones when no id is given.

    :raises SystemExit: there is no such trace.
    """
    if not trace_id:
        _list(folder, output=output, count=count)
        return
    try:
        spans = read_trace(folder, trace_id)
    except ValueError as error:
        raise failed(str(error)) from error
    if not spans:
        raise failed(f"no trace {trace_id} in {folder}")
    tree = assemble(spans)
    if output == "json":
        ordered = [{"depth": depth, **msgspec.to_builtins(span)} for depth, span in tree.spans()]
        print_json({"trace_id": trace_id, "one_tree": tree.is_one_tree, "spans": ordered})
    else:
        say(render(tree))


def _list(folder: Path, *, output: str, count: int) -> None:
    trees = ((trace_id, assemble(read_trace(folder, trace_id))) for trace_id in recent_traces(folder, count))
    found = [(trace_id, tree.is_one_tree, summary(tree)) for trace_id, tree in trees if tree.roots]
    told = [{"trace_id": each, "one_tree": whole, **said._asdict()} for each, whole, said in found]
    rows = []
    for trace_id, _, said in found:
        began, lasted = datetime.fromtimestamp(said.start_ns / 1e9, UTC), f"{said.seconds * 1e3:.1f} ms"
        end = said.error or "ok"
        rows.append((f"{began:%H:%M:%S}", said.tenant, said.model, lasted, end, trace_id, said.spans, said.name))
    empty, least = f"no traces in {folder}", ("MODEL", "TENANT")
    print_found(output, told, _COLUMNS, rows, empty=empty, extra=_WIDE, least=least)
    if output != "json":
        print(_IDS)
