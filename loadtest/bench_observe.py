"""Is what binds found, and nothing where nothing does: `make bench-observe`.

Every bottleneck of `observe/planted.py` is diagnosed, and every healthy mesh. Prints what was found and ends with one
line of JSON; loadtest/README.md says what each figure is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from time import process_time

from libs.diagnosis import Diagnosis, diagnose
from loadtest.figures import percentile, table
from loadtest.observe.planted import Planted, healthy, planted
from loadtest.overload import output

TARGETS = {"diagnosed_right_pct": "≥ 95", "false_alarms": "= 0"}


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
    output.finish("observe", parts, TARGETS)


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
