"""`weir predictors`: who predicts what, and how it goes, as each process counts it (its metrics page)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from libs.diagnosis import Process, parse
from libs.resources.forms import plain
from services.cli import calls
from services.cli.app import Output
from services.cli.observe import scraping
from services.cli.output import print_found, print_table

_COLUMNS = (
    *("PREDICTOR", "ZONE", "VERSION", "STATE", "OK", "FAILED", "CACHED", "ROWS", "EXECUTIONS", "ROWS/EXEC"),
    *("QUEUE", "INPUT", "INFER", "OUTPUT", "MEMORY"),
)
_WIDE = ("ZONE", "CACHED", "INPUT", "OUTPUT")
_LEAST = ("ROWS/EXEC", "EXECUTIONS", "MEMORY", "QUEUE", "INFER", "ROWS", "FAILED")
_PREFIX = "weir_predictor_"
_COUNTED = {
    "inference_request_success_total": "ok",
    "inference_request_failure_total": "failed",
    "inference_count_total": "rows",
    "inference_exec_count_total": "executions",
    "cache_hits_total": "cached",
    "inference_queue_duration_seconds_total": "queue_s",
    "inference_compute_input_duration_seconds_total": "input_s",
    "inference_compute_infer_duration_seconds_total": "infer_s",
    "inference_compute_output_duration_seconds_total": "output_s",
}
"""Of a predictor's metrics, by their names without the prefix."""


def predictors(output: Output = "table") -> None:
    """List the live predictors: the versions that each has, and what became of their requests."""
    found = [plain(each, unset=True) for each in calls.snapshot("endpoints").endpoints_of("predictor")]
    places = {
        Process(each["instance"], "predictor", each["zone"]): f"{each['metrics_address']}/metrics" for each in found
    }
    pages = scraping.take(places).texts.values()
    rows = [row for each, page in zip(found, pages, strict=True) for row in versions_of(each, page)]
    shown, empty = map(cells, rows), "no predictors are registered"
    print_found(output, {"predictors": rows}, _COLUMNS, shown, empty=empty, extra=_WIDE, least=_LEAST)
    why = [(row["predictor"], row["version"], row["detail"]) for row in rows if row["detail"]]
    if why and output != "json":
        print()
        print_table(("PREDICTOR", "VERSION", "WHY"), why, empty="", wide=output == "wide")


def versions_of(endpoint: Mapping[str, Any], page: str | None) -> list[dict[str, Any]]:
    """A predictor's versions with its counts since it started, None where its page cannot be read. Pure."""
    counted: dict[str, dict[str, float]] = {}
    for name, samples in parse(page or "").items():
        if field := _COUNTED.get(name.removeprefix(_PREFIX)):
            for each in samples:
                counted.setdefault(each.labels.get("model", ""), {})[field] = each.value
    states = {each["model_version"]: each for each in endpoint.get("model_states", ())}
    names = sorted({*endpoint["model_versions"], *states})
    who = {"predictor": endpoint["instance"], "zone": endpoint["zone"]}
    if not names:
        return [{**who, "version": "", "state": "empty", "detail": "", "memory_bytes": 0, "counts": None}]
    return [
        {
            **who,
            "version": name,
            "state": states[name]["state"].removeprefix("LOAD_STATE_").lower() if name in states else "ready",
            "detail": states.get(name, {}).get("detail", ""),
            "memory_bytes": int(states.get(name, {}).get("memory_bytes", 0)),
            "counts": None if page is None else dict.fromkeys(_COUNTED.values(), 0.0) | counted.get(name, {}),
        }
        for name in names
    ]


def cells(row: Mapping[str, Any]) -> Sequence[object]:
    """A version's line in the table; times are means per request, each of its batch's, as Triton counts them."""
    who = (row["predictor"], row["zone"], row["version"], row["state"])
    counts, memory = row["counts"], f"{row['memory_bytes'] / 2**20:.0f} MiB" if row["memory_bytes"] else None
    if counts is None:
        return (*who, *[None] * (len(_COLUMNS) - len(who) - 1), memory)
    executions = counts["executions"]
    return (
        *who,
        *(int(counts[name]) for name in ("ok", "failed", "cached", "rows", "executions")),
        f"{counts['rows'] / executions:.1f}" if executions else None,
        *(_mean(counts[name], counts["ok"]) for name in ("queue_s", "input_s", "infer_s", "output_s")),
        memory,
    )


def _mean(seconds: float, count: float) -> str | None:
    return f"{seconds / count * 1000:.2f} ms" if count else None
