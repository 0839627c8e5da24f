"""`weir trace`: what the development collector kept."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from libs.traces import assemble, read_trace, recent_traces, render, summary
from services.cli.app import say, warn
from services.cli.output import print_json, print_table

_COLUMNS = ("TIME (UTC)", "TENANT", "MODEL", "DURATION", "END", "TRACE", "SPANS", "NAME")
_WIDE = ("SPANS", "NAME")
_IDS = "Trace ids are also in answers (`trace_id`), log lines, `weir audit tail --json` and traceparents."


def show(folder: Path, trace_id: str, *, output: str, count: int) -> int:
    """Prints one trace as a tree, or the latest ones when no id is given. Returns the exit code."""
    if not trace_id:
        return _list(folder, output=output, count=count)
    try:
        spans = read_trace(folder, trace_id)
    except ValueError as error:
        warn(f"error: {error}")
        return 1
    if not spans:
        warn(f"error: no trace {trace_id} in {folder}")
        return 1
    tree = assemble(spans)
    if output == "json":
        ordered = [{"depth": depth, **msgspec.to_builtins(span)} for depth, span in tree.spans()]
        print_json({"trace_id": trace_id, "one_tree": tree.is_one_tree, "spans": ordered})
    else:
        say(render(tree))
    return 0


def _list(folder: Path, *, output: str, count: int) -> int:
    trees = ((trace_id, assemble(read_trace(folder, trace_id))) for trace_id in recent_traces(folder, count))
    found = [(trace_id, tree.is_one_tree, summary(tree)) for trace_id, tree in trees if tree.roots]
    if output == "json":
        print_json([{"trace_id": each, "one_tree": whole, **said._asdict()} for each, whole, said in found])
        return 0
    rows = []
    for trace_id, _, said in found:
        began, lasted = datetime.fromtimestamp(said.start_ns / 1e9, UTC), f"{said.seconds * 1e3:.1f} ms"
        end = said.error or "ok"
        rows.append((f"{began:%H:%M:%S}", said.tenant, said.model, lasted, end, trace_id, said.spans, said.name))
    print_table(
        _COLUMNS, rows, empty=f"no traces in {folder}", wide=output == "wide", extra=_WIDE, least=("MODEL", "TENANT")
    )
    print(_IDS)
    return 0
