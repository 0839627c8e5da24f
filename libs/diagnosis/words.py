"""A diagnosis in words and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from libs.diagnosis.diagnosis import Diagnosis
from libs.diagnosis.findings import Cost, Evidence, Finding, Remedy
from libs.resources.quantities import show_usd

_COSTS = {Cost.NOTHING: "nothing", Cost.PROCESS: "a process", Cost.ACCELERATOR: "a worker"}
_MICRO = 1_000_000


def as_json(found: Diagnosis) -> dict[str, Any]:
    """For programs."""
    return {"seconds": found.seconds, "findings": [_finding(each) for each in found.findings]}


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "stage": found.stage.name.lower(),
        "whom": dict(found.whom),
        "since": found.since,
        "evidence": [each._asdict() for each in found.evidence],
        "remedies": [{**each._asdict(), "cost": each.cost.name.lower()} for each in found.remedies],
    }


def lines(found: Diagnosis, processes: int) -> Iterator[str]:
    """For people: what binds with everything about it, and then what else does.

    :param processes: how many were asked.
    """
    if not found.findings:
        yield f"nothing binds: {processes} processes, over {found.seconds:.3g} s"
    for number, each in enumerate(found.findings):
        if number:
            yield ""
        yield f"{'and' if number else 'what binds:'} {headline(each)}"
        for evidence in each.evidence:
            yield f"  {_said(evidence)}"
        yield "  to do, the cheapest first:"
        width = max((len(cost(remedy)) for remedy in each.remedies), default=0)
        for remedy in each.remedies:
            yield f"    {cost(remedy):<{width}}  {remedy.what}"


def headline(found: Finding) -> str:
    """In one line: the stage, for whom, since when."""
    whom = ", ".join(f"{name} {value}" for name, value in found.whom.items() if value)
    since = datetime.fromtimestamp(found.since, UTC).strftime("%H:%M:%S")
    return f"{found.stage.value} ({whom}), at least since {since} UTC"


def _said(evidence: Evidence) -> str:
    beside = "" if evidence.limit is None else f"   (felt beyond {_number(evidence.limit)})"
    return f"{evidence.what}: {_number(evidence.value)} {evidence.unit}".rstrip() + beside


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def cost(remedy: Remedy) -> str:
    """What a remedy takes: "nothing", "a process", "$1.80 an hour"."""
    if remedy.usd_per_hour:
        return f"{show_usd(round(remedy.usd_per_hour * 100) * (_MICRO // 100))} an hour"
    return _COSTS[remedy.cost]
