"""Prometheus rules from the declared SLOs: the same windows, factors and minimum as `libs.burn.burns`.

Made for `weir_slo_events_total{route, tier, objective, outcome="good"|"bad"}`, which gateways count. The form is
that of Prometheus's "Recording rules" and "Alerting rules" documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import yaml
from weir.registry.v1 import registry_pb2 as pb

from libs.burn.objectives import slo_targets
from libs.burn.rates import MIN_BAD, MIN_EVENTS, WINDOWS, Window

EVENTS = "weir_slo_events_total"
"""The counter that the rules read."""
_BY = "route, tier, objective"
_HEADER = """\
# Written by `weir slo rules` from the declared objectives; do not edit. Windows and factors: libs/burn/rates.py.
"""


def rules_of(
    slos: Iterable[pb.Slo], *, windows: Sequence[Window] = WINDOWS, min_events: int = MIN_EVENTS
) -> dict[str, Any]:
    """A Prometheus rule file as data: one group records the share of bad events per window, one alerts."""
    declared = sorted(slos, key=lambda slo: (slo.route, slo.tier))
    lengths = sorted({length for window in windows for length in (window.long, window.short)})
    recording = [{"record": _ratio(length), "expr": _ratio_expr(length)} for length in lengths]
    recording += [{"record": _count(length), "expr": _count_expr(length)} for length in lengths]
    alerts = [
        _alert(slo, objective, target, window, _own_tiers(slo, declared), min_events)
        for slo in declared
        for objective, target in sorted(slo_targets(slo).items())
        for window in windows
    ]
    return {
        "groups": [
            {"name": "weir-slo-ratios", "rules": recording},
            {"name": "weir-slo-burn", "rules": alerts},
        ]
    }


def rules_text(slos: Iterable[pb.Slo], *, windows: Sequence[Window] = WINDOWS, min_events: int = MIN_EVENTS) -> str:
    """`rules_of` as the YAML file that Prometheus reads."""
    return _HEADER + yaml.safe_dump(rules_of(slos, windows=windows, min_events=min_events), sort_keys=False, width=120)


def _alert(
    slo: pb.Slo, objective: str, target: float, window: Window, own: list[str], min_events: int
) -> dict[str, Any]:
    which = f'route="{slo.route}", objective="{objective}"'
    if slo.tier == "*":
        which += f', tier!~"{"|".join(own)}"' if own else ""
    else:
        which += f', tier="{slo.tier}"'
    # A quarter of a millionth of a share is far below what any count can resolve.
    threshold = round(window.factor * (1.0 - target), 9)
    burning = [f"{_ratio(length)}{{{which}}} > {threshold:g}" for length in (window.long, window.short)]
    enough = [f"{_count(length)}{{{which}}} >= {min_events}" for length in (window.long, window.short)]
    bad = f'{EVENTS}{{{which}, outcome="bad"}}'
    enough += [
        f"sum by ({_BY}) (increase({bad}[{_length(each)}])) >= {MIN_BAD}" for each in (window.long, window.short)
    ]
    known = [f"sum by ({_BY}) ({EVENTS}{{{which}}} offset {_length(window.short)})"] if window.patient else []
    return {
        "alert": "WeirSloBurn",
        "expr": " and ".join([*burning, *enough, *known]),
        "labels": {
            "severity": window.severity,
            "objective": objective,
            "long_window": _length(window.long),
            "short_window": _length(window.short),
        },
        "annotations": {
            "summary": f"{slo.route}/{{{{ $labels.tier }}}}: {objective} burns its error budget over "
            f"{window.factor:g} times too fast",
            "description": f"{{{{ $value | humanizePercentage }}}} of events were bad in {_length(window.long)}; "
            f"{1.0 - target:.4g} are allowed. `weir slo status` shows windows and budgets.",
            "runbook_url": "docs/runbooks/WeirSloBurn.md",
        },
    }


def _own_tiers(slo: pb.Slo, declared: Sequence[pb.Slo]) -> list[str]:
    return (
        [other.tier for other in declared if other.route == slo.route and other.tier != "*"] if slo.tier == "*" else []
    )


def _ratio(length: float) -> str:
    return f"weir:slo_bad:ratio_rate{_length(length)}"


def _ratio_expr(length: float) -> str:
    span = _length(length)
    bad = f'sum by ({_BY}) (rate({EVENTS}{{outcome="bad"}}[{span}]))'
    # Objectives that no bad event was ever counted of have no series of them: their share is 0, not unknown.
    return f"({bad} or 0 * sum by ({_BY}) (rate({EVENTS}[{span}]))) / sum by ({_BY}) (rate({EVENTS}[{span}]))"


def _count(length: float) -> str:
    return f"weir:slo_events:increase{_length(length)}"


def _count_expr(length: float) -> str:
    return f"sum by ({_BY}) (increase({EVENTS}[{_length(length)}]))"


def _length(seconds: float) -> str:
    """As Prometheus writes durations, in the largest whole unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds * 1000:.0f}ms"
