"""Is what binds found, and nothing where nothing does, and what does it cost to be seen: `make bench-observe`.

Every bottleneck of `observe/planted.py` is diagnosed, and every healthy mesh. The pages of a large mesh are made and
weighed (`observe/pages.py`), a stranger's names counted (`observe/names.py`), and of a mesh under load what a request
pays for its metrics (`observe/cost.py`). Prints what was found and ends with one line of JSON; loadtest/README.md says
what each figure is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from time import process_time

import uvloop

from libs.diagnosis import Diagnosis, diagnose
from loadtest.figures import percentile, table
from loadtest.observe import cost, names, pages
from loadtest.observe.planted import Planted, healthy, planted
from loadtest.overload import output

TARGETS = {
    "diagnosed_right_pct": "≥ 95",
    "false_alarms": "= 0",
    "scrape_ms": "≤ 150",
    "scrape_kb": "≤ 2000",
    "series_after_1m_names": "≤ 1000",
    "metrics_cpu_pct": "≤ 3",
}
INTERVAL_MS = 15_000.0
"""Between two scrapes: 1% of a core is 150 ms."""
_PARTS = {"seconds": 1e3, "unpacked": 1e-3, "bytes": 1e-3, "series": 1.0}
"""Of `pages.whole`, with what makes them milliseconds and kilobytes."""


def main(argv: Iterable[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="bench_observe", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="every fourth situation: no figures of weight")
    asked = parser.parse_args(None if argv is None else list(argv))
    step = 4 if asked.smoke else 1
    rows: list[tuple[Planted, Diagnosis]] = []
    seconds: list[float] = []
    for situation in [*list(planted())[::step], *list(healthy())[::step]]:
        scrapes = situation.scrapes()
        begun = process_time()
        found = diagnose(*scrapes)
        seconds.append(process_time() - begun)
        rows.append((situation, found))
    output.say(table(("situation", "planted", "found"), [cells(*row) for row in rows]))
    parts = output.Parts()
    with parts.part("diagnoses"):
        parts.figures |= {**judged(rows), "diagnose_ms_p50": percentile(seconds, 0.5) * 1000}
    smoke = asked.smoke
    with parts.part("pages"):
        parts.figures |= weighed(pages.whole(20, 100) if smoke else pages.whole())
    with parts.part("names"):
        parts.figures["series_after_1m_names"] = names.measured(names.NAMES // (100 if smoke else 1))
    with parts.part("cost"):
        parts.figures |= uvloop.run(cost.figures(2.0 if smoke else 15.0))
    output.finish("observe", parts, TARGETS)


def weighed(services: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """One scrape of a whole mesh: CPU, what is sent before it is packed, series."""
    columns = ("ms of CPU", "kB", "kB packed", "series")
    rows = [
        (
            name,
            f"{each['seconds'] * 1e3:.1f}",
            *(f"{each[size] / 1e3:.1f}" for size in ("unpacked", "bytes")),
            f"{each['series']:.0f}",
        )
        for name, each in services.items()
    ]
    output.say(table(("pages of", *columns), rows))
    names = ("scrape_ms", "scrape_kb", "scrape_kb_packed", "scrape_series")
    totals = [scale * sum(each[part] for each in services.values()) for part, scale in _PARTS.items()]
    return dict(zip(names, totals, strict=True)) | {"scrape_core_pct": 100 * totals[0] / INTERVAL_MS}


def judged(rows: Iterable[tuple[Planted, Diagnosis]]) -> dict[str, float]:
    """Of the planted ones the share whose stage was named first; of the healthy ones how many were not left alone."""
    right, wrong, alarms = 0, 0, 0
    for situation, found in rows:
        if situation.stage is None:
            alarms += found.binds is not None
        elif found.binds is not None and found.binds.stage is situation.stage:
            right += 1
        else:
            wrong += 1
    return {"diagnosed_right_pct": 100.0 * right / (right + wrong), "false_alarms": alarms}


def cells(situation: Planted, found: Diagnosis) -> tuple[str, str, str]:
    """A line of the table."""
    said = found.binds.stage.value if found.binds else "-"
    return situation.name, situation.stage.value if situation.stage else "-", said


if __name__ == "__main__":
    main()
