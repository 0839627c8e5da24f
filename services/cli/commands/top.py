"""`weir top`: what the mesh does, again and again."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from services.cli.app import Json, Option
from services.cli.config import locate
from services.cli.output import failed, paint, print_json, table_lines, write

if TYPE_CHECKING:
    from libs.diagnosis.overview import Overview

_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\033[H", "\033[K", "\033[J"
_BEGIN, _END = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"
"""The terminal's other page, without a cursor; and back."""


def top(
    every: Annotated[float, Option(least=1, most=60, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, Option("--once", help="Look once and end, as in a pipe.")] = False,
    as_json: Json = False,
) -> None:
    """Show rates, latencies, refusals, queues, workers and tenants as they are, until Ctrl-C.

    In a pipe, with --once or --json it looks once.
    """
    looks = _looks(every)
    if as_json:
        print_json(_plain(next(looks)))
    elif once or not sys.stdout.isatty():
        write("\n".join(frame(next(looks))) + "\n")
    else:
        sys.stdout.write(_BEGIN)
        try:
            for found in looks:
                lines = [line + _CLEAR_LINE for line in (paint(time.strftime("%H:%M:%S"), "bold"), *frame(found))]
                sys.stdout.write(_HOME + "\n".join(lines) + _CLEAR_BELOW)
                sys.stdout.flush()
        finally:
            sys.stdout.write(_END)
            sys.stdout.flush()


def frame(found: Overview) -> Iterator[str]:
    """What is shown, in lines that fit the terminal."""
    columns = ("PLANE", "REQUESTS/S", "REFUSED/S", "TOKENS OR ROWS/S", "P50", "P95")
    planes = [
        (each.name, _rate(each.requests), _rate(each.refused), _rate(each.used), _time(each.p50), _time(each.p95))
        for each in found.planes
    ]
    yield from table_lines(columns, planes, least=("P50",))
    yield f"binds: {', '.join(found.binds) or 'nothing'}" + (
        f"; silent: {', '.join(found.silent)}" if found.silent else ""
    )
    if found.reasons:
        yield from ("", *table_lines(("REASON", "PER S"), [(name, _rate(rate)) for name, rate in found.reasons[:6]]))
    if found.queues:
        pools = [(each.pool, f"{each.waiting:.0f}", _time(each.wait), f"{each.refused:.0%}") for each in found.queues]
        yield from ("", *table_lines(("POOL", "WAITING", "WAIT", "NO ROOM"), pools))
    serving = [
        (
            each.process.name,
            f"{each.busy:.0%}",
            f"{each.running:.0f}",
            f"{each.waiting:.0f}",
            None if math.isnan(each.memory) else f"{each.memory:.0%}",
            ", ".join(each.versions),
        )
        for each in found.serving
    ]
    columns = ("PROCESS", "BUSY", "RUNNING", "WAITING", "KV", "VERSIONS")
    yield from ("", *table_lines(columns, serving, least=("VERSIONS", "WAITING")))
    if found.tenants:
        tenants = [
            (each.name, _rate(each.requests), _rate(each.refused), _rate(each.used), f"{each.dollars:.2f}")
            for each in found.tenants
        ]
        of_tenants = ("TENANT", "REQUESTS/S", "REFUSED/S", "TOKENS OR ROWS/S", "$ AN HOUR")
        yield from ("", *table_lines(of_tenants, tenants, least=("REFUSED/S",)))


def _looks(every: float) -> Iterator[Overview]:
    from libs.diagnosis import Window
    from libs.diagnosis.overview import overview
    from services.cli.observe import scraping

    places = scraping.places(locate())
    before = scraping.take(places)
    while True:
        time.sleep(max(0.0, before.at + every - time.time()))
        after = scraping.take(places)
        if not any(after.texts.values()):
            raise failed("no process of the mesh shows its metrics; see `weir status`")
        if after.at - before.at >= 1:  # a clock that was set back says nothing of rates
            yield overview(Window(before.scrape(), after.scrape()))
        before = after


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _time(seconds: float) -> str | None:
    if math.isnan(seconds):
        return None
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.0f} s"


def _plain(value: object) -> object:
    """As JSON: tuples with names as objects, what is not known as null."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(each) for name, each in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
