"""`make drill-alerts`: each alert of deploy/alerts fired by a real fault in a mesh with a real Prometheus and a real
Alertmanager, and seen to end. Then a healthy mesh with load, a rollout and a restart of everything, in which none may
fire (DURATION seconds, 3,600 when nothing is said, 0 leaves it out).

**Shortened windows.** The rules are those of deploy/alerts with every `for`, range and offset divided by FACTOR (15),
and so are the 15 s between two scrapes and evaluations (loadtest/alerts/shortened.py): a minute becomes 4 s. Thresholds
stay as they are. The healthy mesh has the rules as they are.

Faults that do not disturb each other go on at once (loadtest/alerts/drills.py).

What is counted, per alert, by the clock of this process:

- `fired`: from the fault (its last act: a signal, a write, a file; loadtest/alerts/faults.py says which where it is not
  plain) until Alertmanager's API shows the alert, looked at every 0.2 s.
- `ended`: from the end of the fault, everything being ready again, until Alertmanager shows it no more.
- `alert_s_max`: the longest `fired` less the rule's own `for`, shortened as it was evaluated. Ranges are not taken off,
  though some rules need a part of theirs. Target ≤ 30 s.
- `alert_s_max_15s`: that, and what 15 s between scrapes and evaluations can add to it at worst: 2 × (15 − 15 / FACTOR).

An alert that no fault here provokes is named with the reason (`not_fired`), never made up. Ends with one line of JSON;
exit code 1 when an alert did not fire or end though its fault could be done, fired late, or fired in the healthy mesh.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from loadtest.alerts.drills import FASTEST, NOT_DRILLED, QUICK, Result, chosen, play
from loadtest.alerts.healthy import false_alerts
from loadtest.alerts.shortened import INTERVAL, shortened, windows
from loadtest.alerts.site import RULE_FOLDER, drill_site, watched
from loadtest.figures import table
from loadtest.machine import machine
from loadtest.soak import network
from loadtest.soak.__main__ import say
from services.cli.mesh.monitoring import RULES

FACTOR = 15.0
LATEST = 30.0
"""Seconds that an alert may take beyond its own window."""


async def drilled(folder: Path, alerts: Collection[str], factor: float) -> list[Result]:
    """Provokes these, all when none are named."""
    lengths = {
        name: length
        for file in RULES
        for name, length in windows(shortened((RULE_FOLDER / file).read_text(), factor)).items()
    }
    async with drill_site(folder, factor) as site, watched(site, FASTEST) as watch:
        return await play(site, watch, chosen(alerts), lengths, say)


def figures(results: Sequence[Result], false: Collection[str] | None, factor: float) -> dict[str, float]:
    """Those of the last line; without the healthy mesh there is nothing to say of false alerts."""
    late = [each.late for each in results if each.late is not None]
    told: dict[str, float] = {
        "alerts_fired": len(late),
        "alerts_ended": sum(each.ended is not None for each in results),
    }
    if late:
        told["alert_s_max"] = round(max(late), 1)
        told["alert_s_max_15s"] = round(max(late) + 2 * (INTERVAL - INTERVAL / factor), 1)
    if false is not None:
        told["false_alerts"] = len(false)
    return told


def wrong(results: Sequence[Result], told: dict[str, float], possible: Collection[str]) -> list[str]:
    """What must not be: names of figures and alerts."""
    silent = [each.alert for each in results if each.ended is None and each.alert in possible]
    late = ["alert_s_max"] if told.get("alert_s_max", 0.0) > LATEST else []
    return [*silent, *late, *(["false_alerts"] if told.get("false_alerts") else [])]


def _table(results: Sequence[Result]) -> str:
    def told(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    rows = [(each.alert, told(each.fired), told(each.window), told(each.ended)) for each in results]
    return table(("alert", "fired s", "for s", "ended s"), rows)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="alerts with commas between them; all when left out")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument(
        "--factor", type=float, default=FACTOR, help="windows are so much shorter (default: %(default)g)"
    )
    parser.add_argument("--healthy", type=float, default=0.0, help="seconds of the healthy mesh (default: none)")
    parser.add_argument("--no-drills", action="store_true", help="the healthy mesh alone")
    parser.add_argument("--keep", type=Path, default=None, help="a folder for the meshes' state, which stays")
    options = parser.parse_args()
    network.move_inside(["loadtest.alerts", *sys.argv[1:]])
    alerts = QUICK if options.quick else tuple(filter(None, options.only.split(",")))
    began, results, false = time.monotonic(), [], None
    with tempfile.TemporaryDirectory(prefix="weir-alerts-") as temporary:
        folder = options.keep or Path(temporary)
        if not options.no_drills:
            say(f"rules with windows shortened {options.factor:g} times, scraped every {INTERVAL / options.factor:g} s")
            results = asyncio.run(drilled(folder / "drills", alerts, options.factor))
        if options.healthy:
            say(f"a healthy mesh for {options.healthy:g} s, with the rules as they are")
            false = asyncio.run(false_alerts(folder / "healthy", options.healthy, say))
    told = figures(
        results, None if false is None else [name for name, n in false.items() for _ in range(n)], options.factor
    )
    possible = {name for each in chosen(alerts) for drill in each if not drill.cannot() for name in drill.alerts}
    found = wrong(results, told, possible)
    if results:
        say(_table(results))
    not_fired = {each.alert: each.why for each in results if each.why} | (dict(NOT_DRILLED) if not alerts else {})
    line: dict[str, Any] = {
        "bench": "alerts",
        "figures": told,
        "targets": {"alert_s_max": f"≤ {LATEST:g}", "false_alerts": "= 0"},
        "shortened": options.factor,
        "healthy_s": options.healthy,
        "false": false or {},
        "not_fired": not_fired,
        "missed": found,
        "seconds": round(time.monotonic() - began, 1),
        "machine": machine(),
    }
    say(json.dumps(line))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
