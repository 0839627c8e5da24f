"""What a run comes to, in numbers and in words. Every form says that it is a simulation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from libs.tables import layout, terminal_width
from simulation.outcomes import OK, Observed, Outcome
from simulation.scenario import Objective, Scenario

LABEL = "simulation"
_REFUSALS = ("REJECTED_", "EVICTED_", "QUOTA_", "DRAINING", "CONTEXT_LENGTH_EXCEEDED")


def refused(outcome: str) -> bool:
    """It was told no, by one of the mesh's own reasons; other ends that are not "ok" are failures."""
    return outcome.startswith(_REFUSALS)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value at a share (0 to 1) of ascending values, by the nearest rank; None without any."""
    if not values:
        return None
    return values[min(len(values) - 1, max(0, math.ceil(share * len(values)) - 1))]


def met(outcome: Outcome, objective: Objective | None) -> bool:
    """Was it served within its objective?"""
    if outcome.outcome != OK or outcome.ttft is None:
        return False
    if objective is None:
        return True
    return not (
        (objective.ttft is not None and outcome.ttft > objective.ttft)
        or (objective.itl is not None and (outcome.itl or 0.0) > objective.itl)
        or (objective.e2e is not None and outcome.e2e > objective.e2e)
    )


def figures(outcomes: Iterable[Outcome], objectives: dict[str, Objective], seconds: float) -> dict[str, Any]:
    """Figures of some requests that came within so many seconds. Times in seconds, rates per second."""
    requests = list(outcomes)
    served = [each for each in requests if each.outcome == OK]
    ends = Counter(each.outcome for each in requests)
    ttfts = sorted(each.ttft for each in served if each.ttft is not None)
    itls = sorted(each.itl for each in served if each.itl is not None)
    good = sum(met(each, objectives.get(each.arrival.queue_class)) for each in requests)
    return {
        "offered": len(requests),
        "served": len(served),
        "good": good,
        "goodput_per_s": round(good / seconds, 3),
        "refused": {name: count for name, count in sorted(ends.items()) if refused(name)},
        "failed": {name: count for name, count in sorted(ends.items()) if name != OK and not refused(name)},
        "ttft_p50": _rounded(percentile(ttfts, 0.5)),
        "ttft_p95": _rounded(percentile(ttfts, 0.95)),
        "ttft_p99": _rounded(percentile(ttfts, 0.99)),
        "itl_p95": _rounded(percentile(itls, 0.95)),
        "e2e_p95": _rounded(percentile(sorted(each.e2e for each in served), 0.95)),
        "prompt_tokens": sum(each.arrival.prompt_tokens for each in served),
        "output_tokens": sum(each.delivered for each in requests),
        "interrupted": sum(each.interrupted for each in requests),
        "moved": sum(each.moved for each in requests),
    }


def summarise(scenario: Scenario, observed: Observed, *, timeline: bool = False) -> dict[str, Any]:
    """The whole report as JSON values: the same for the same scenario."""
    objectives = dict(scenario.objectives)
    seconds = scenario.seconds - scenario.warmup
    counted = [each for each in observed.outcomes if scenario.warmup <= each.arrival.at < scenario.seconds]
    keys = sorted({(each.arrival.tenant, each.arrival.queue_class) for each in counted})
    report: dict[str, Any] = {
        "label": LABEL,
        "simulated": True,
        "scenario": scenario.name,
        "about": scenario.about,
        "workers": scenario.cluster.workers,
        "discipline": scenario.limits().discipline,
        "seconds": scenario.seconds,
        "warmup": scenario.warmup,
        "seed": scenario.seed,
        "total": figures(counted, objectives, seconds),
        "tenants": [
            {"tenant": tenant, "queue_class": queue_class}
            | figures(
                (e for e in counted if (e.arrival.tenant, e.arrival.queue_class) == (tenant, queue_class)),
                objectives,
                seconds,
            )
            for tenant, queue_class in keys
        ],
        "gap_between_tokens_p95": _step_gap(observed, 0.95),
        "gap_between_tokens_p99": _step_gap(observed, 0.99),
        "service_gaps": [
            {
                "queue_class": queue_class.name.lower(),
                "tenants": list(pair),
                "gap": round(gap.gap, 1),
                "bound": round(gap.bound, 1),
                "burst": round(gap.burst, 1),
                "overtaken": round(gap.overtaken, 1),
                "over_bound": round(gap.share, 4),
            }
            for queue_class, pair, gap in sorted(observed.gaps, key=lambda each: each[:2])
        ],
        "workers_busy": round(observed.busy, 4),
        "on_credit": observed.on_credit,
        "memory_preemptions": observed.memory_preemptions,
        "committed": round(observed.committed, 3),
        "reserved": round(observed.reserved, 3),
        "engine_steps": observed.steps,
        "events": observed.events,
        "requests": len(observed.outcomes),
    }
    if timeline:
        report["timeline"] = [*seconds_of(scenario, observed)]
    return report


def seconds_of(scenario: Scenario, observed: Observed) -> Iterator[dict[str, Any]]:
    """Each second of the run: what came, and what became of what came in it. Tokens count where they were sent, taken
    as evenly spread between a request's first and its last."""
    last = math.ceil(max([scenario.seconds, *(each.arrival.at + each.e2e for each in observed.outcomes)]))
    came: list[list[Outcome]] = [[] for _ in range(last + 1)]
    tokens = [0.0] * (last + 1)
    for each in observed.outcomes:
        came[int(each.arrival.at)].append(each)
        if each.ttft is not None and each.delivered:
            _spread(tokens, each.arrival.at + each.ttft, each.arrival.at + each.e2e, each.delivered)
    objectives = dict(scenario.objectives)
    for second in range(last):
        requests = came[second]
        ttfts = sorted(each.ttft for each in requests if each.outcome == OK and each.ttft is not None)
        yield {
            "label": LABEL,
            "second": second,
            "offered": len(requests),
            "served": len(ttfts),
            "good": sum(met(each, objectives.get(each.arrival.queue_class)) for each in requests),
            "refused": dict(sorted(Counter(e.outcome for e in requests if refused(e.outcome)).items())),
            "failed": sum(e.outcome != OK and not refused(e.outcome) for e in requests),
            "ttft_p95": _rounded(percentile(ttfts, 0.95)),
            "output_tokens": round(tokens[second]),
        }


def _spread(tokens: list[float], start: float, end: float, count: int) -> None:
    if end <= start:
        tokens[min(int(start), len(tokens) - 1)] += count
        return
    for second in range(int(start), min(int(end), len(tokens) - 1) + 1):
        tokens[second] += count * (min(end, second + 1) - max(start, second)) / (end - start)


def _step_gap(observed: Observed, share: float) -> float | None:
    """Over all gaps between two tokens of one sequence on a worker."""
    wanted = share * sum(observed.step_gaps.values())
    for gap, count in sorted(observed.step_gaps.items()):
        wanted -= count
        if wanted <= 0:
            return gap / 1e4
    return None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


# ---- words -----------------------------------------------------------------------------------------------------------


def render(report: dict[str, Any]) -> str:
    """The report for people."""
    head = (
        f"{LABEL}: {report['scenario']}, {report['workers']} workers, {report['discipline']}, "
        f"{report['seconds']:g} s (the first {report['warmup']:g} s are not counted), seed {report['seed']}"
    )
    lines = [head, *([report["about"]] if report["about"] else []), "", *_tenants(report)]
    if report["service_gaps"]:
        lines += ["", *_gaps(report)]
    lines += [
        "",
        f"{LABEL}: workers busy {report['workers_busy']:.0%}; gaps between tokens p95 "
        f"{_ms(report['gap_between_tokens_p95'])} ms, p99 {_ms(report['gap_between_tokens_p99'])} ms; "
        f"{report['requests']} requests, {report['on_credit']} of them on credit; {report['engine_steps']} engine "
        f"steps in {report['events']} events",
    ]
    if report["committed"]:
        lines.append(
            f"{LABEL}: what was granted to one worker came to need up to {report['committed']:.2f} times its memory, "
            f"and was counted as up to {report['reserved']:.2f}; {report['memory_preemptions']} preempted for memory"
        )
    if "timeline" in report:
        lines += ["", f"{LABEL}, second by second:", *_timeline(report)]
    return "\n".join(lines)


def _tenants(report: dict[str, Any]) -> list[str]:
    columns = ("tenant", "class", "offered", "served", "in SLO", "per s", "TTFT p50", "p95", "p99", "ITL p95", "tokens")
    total = {"tenant": "all", "queue_class": ""} | report["total"]
    everyone = [*report["tenants"], total]
    rows = [
        (
            row["tenant"],
            row["queue_class"],
            row["offered"],
            row["served"],
            row["good"],
            f"{row['goodput_per_s']:.1f}",
            *(_ms(row[name]) for name in ("ttft_p50", "ttft_p95", "ttft_p99", "itl_p95")),
            row["prompt_tokens"] + row["output_tokens"],
        )
        for row in everyone
    ]
    lines = [*_table(columns, rows, least=("tokens", "ITL p95", "p99")), "Times in ms."]
    for row in everyone[:-1]:
        ends = {**row["refused"], **row["failed"]}
        notes = [f"{count} {name}" for name, count in ends.items()]
        notes += [f"{row[what]} {what}" for what in ("interrupted", "moved") if row[what]]
        if notes:
            lines.append(f"{row['tenant']} ({row['queue_class']}): {', '.join(notes)}")
    return lines


def broken(report: dict[str, Any]) -> list[str]:
    """What was promised and not kept, in words; nothing where nothing was promised (fifo)."""
    if report["discipline"] != "fair":
        return []
    return [
        f"the service gap of {' and '.join(gap['tenants'])} ({gap['queue_class']}) is {gap['over_bound']:.0%} of its "
        f"bound: {gap['gap']:g} of {gap['bound']:g} cost units"
        for gap in report["service_gaps"]
        if gap["over_bound"] > 1.0
    ]


def _gaps(report: dict[str, Any]) -> list[str]:
    columns = ("both waiting", "class", "service gap", "bound", "of it bursts", "overtaken", "share")
    rows = [
        (
            " / ".join(gap["tenants"]),
            gap["queue_class"],
            *(gap[name] for name in ("gap", "bound", "burst", "overtaken")),
            f"{gap['over_bound']:.0%}",
        )
        for gap in report["service_gaps"]
    ]
    return _table(columns, rows, least=("overtaken", "of it bursts"))


def _timeline(report: dict[str, Any]) -> list[str]:
    columns = ("s", "offered", "served", "in SLO", "failed", "TTFT p95", "tokens/s", "refused")
    rows = [
        (
            row["second"],
            row["offered"],
            row["served"],
            row["good"],
            row["failed"],
            _ms(row["ttft_p95"]),
            row["output_tokens"],
            ", ".join(f"{count} {name}" for name, count in row["refused"].items()) or "-",
        )
        for row in report["timeline"]
    ]
    return _table(columns, rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, least: Sequence[str] = ()) -> list[str]:
    found = layout([columns, *([str(cell) for cell in row] for row in rows)], terminal_width(), least)
    note = [f"(no room for {', '.join(found.gone)}: --json)"] if found.gone else []
    return [*found.headings, *found.body, *note]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.1f}"
