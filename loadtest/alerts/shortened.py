"""Rules of Prometheus whose clock runs faster. Pure.

A rule that looks at minutes is drilled in seconds: every `for`, every range in brackets and every `offset` is divided
by one factor, and so is, by whoever starts Prometheus, the time between two scrapes and two evaluations. A rule then
sees as many samples as the real one does. Thresholds stay; rates are per second in both. What the mesh itself takes
(leases of 6 s, breakers of 5 s) does not get faster: a fault that the mesh mends by itself within a minute may fire a
shortened rule, and not the real one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

INTERVAL = 15.0
"""Seconds between two scrapes of the real Prometheus (deploy/topology.toml)."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_LENGTH = r"(?:\d+(?:ms|[smhdw]))+"
_PART = re.compile(r"(\d+)(ms|[smhdw])")
_RANGE = re.compile(rf"(?<=\[){_LENGTH}(?=\])|(?<=\boffset ){_LENGTH}\b")


def shortened(text: str, factor: float) -> str:
    """A rule file whose windows are so many times as short.

    :raises ValueError: the factor is below 1.
    """
    if not factor >= 1.0:
        raise ValueError(f"the factor is {factor}, not at least 1")
    file = yaml.safe_load(text)
    for rule in _rules(file):
        rule["expr"] = _RANGE.sub(lambda found: _told(seconds(found[0]) / factor), rule["expr"])
        if "for" in rule:
            rule["for"] = _told(seconds(rule["for"]) / factor)
    return yaml.safe_dump(file, sort_keys=False, width=1_000)


def windows(text: str) -> dict[str, float]:
    """Seconds that what is wrong must last before an alert fires (`for`), by alert; of one with several rules the
    longest."""
    found: dict[str, float] = {}
    for rule in _rules(yaml.safe_load(text)):
        if name := rule.get("alert"):
            found[name] = max(found.get(name, 0.0), seconds(rule.get("for", "0s")))
    return found


def seconds(length: str) -> float:
    """Of "1h30m".

    :raises ValueError: it is no duration of Prometheus's.
    """
    if not re.fullmatch(_LENGTH, length):
        raise ValueError(f"{length!r} is no duration")
    return sum(int(count) * _UNITS[unit] for count, unit in _PART.findall(length))


def _told(length: float) -> str:
    """In milliseconds, which are exact; a range must not be empty."""
    return f"{max(1, round(length * 1e3))}ms" if length else "0s"


def _rules(file: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for group in file["groups"]:
        yield from group["rules"]
