"""`weir top`: what the mesh does, again and again."""

from __future__ import annotations

import math
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from services.cli.app import Json, Option
from services.cli.config import locate
from services.cli.output import failed, paint, print_json, table_lines, write

if TYPE_CHECKING:
    from libs.diagnosis.overview import Overview

_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\033[H", "\033[K", "\033[J"
_BEGIN, _END = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"
"""The terminal's other page, without a cursor; and back."""
_EVENTS = 8
"""The last that are shown."""


def top(
    every: Annotated[float, Option(least=1, most=60, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, Option("--once", help="Look once and end, as in a pipe.")] = False,
    as_json: Json = False,
) -> None:
    """Show rates, latencies, refusals, workers, rollouts, budgets, what happens, until Ctrl-C.

    In a pipe, with --once or --json it looks once.
    """
    looks = _looks(every)
    if as_json:
        print_json(_plain(next(looks)))
    elif once or not sys.stdout.isatty():
        found = next(looks)
        write("\n".join(frame(found, found.events)) + "\n")
    else:
        _live(looks)


def _live(looks: Iterator[Overview]) -> None:
    happened = deque[str](maxlen=_EVENTS)
    with _screen():
        for found in looks:
            now = time.strftime("%H:%M:%S")
            happened.extendleft(f"{now} {each}" for each in found.events)
            lines = [paint(now, "bold"), *frame(found, happened, shutil.get_terminal_size().lines - 2)]
            sys.stdout.write(_HOME + "\n".join(line + _CLEAR_LINE for line in lines) + _CLEAR_BELOW)
            sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[None]:
    """The terminal's other page, which is left however this ends: by SIGTERM and SIGHUP, too, or with the terminal."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        sys.stdout.write(_BEGIN)
        yield
    except OSError as error:  # the terminal is gone
        raise SystemExit(0) from error
    finally:
        with suppress(OSError):
            sys.stdout.write(_END)
            sys.stdout.flush()
        for number, handler in before.items():
            signal.signal(number, handler)


def frame(found: Overview, happened: Sequence[str] | deque[str] = (), room: int = 0) -> list[str]:
    """What is shown, in lines that fit the terminal.

    :param happened: what is told of as having happened, the latest first.
    :param room: the most lines; 0: as many as there are.
    """
    return fitting([part for part in _parts(found, happened) if part], room)


def fitting(parts: Sequence[list[str]], room: int) -> list[str]:
    """The lines of all parts with an empty one between two; of the longest is shown less, where there is no room.

    :param room: lines; 0: as many as there are.
    """
    shown = [len(part) for part in parts]
    while room and sum(shown) + len(parts) - 1 > room and max(shown, default=0) > 2:
        shown[shown.index(max(shown))] -= 1
    lines: list[str] = []
    for part, count in zip(parts, shown, strict=True):
        more = [] if count == len(part) else [f"… {len(part) - count + 1} more"]
        lines += [*part[: count - len(more)], *more, ""]
    return lines[:-1][: room or None]


def _parts(found: Overview, happened: Sequence[str] | deque[str]) -> Iterator[list[str]]:
    columns = ("PLANE", "REQUESTS/S", "REFUSED/S", "TOKENS OR ROWS/S", "P50", "P95")
    planes = [
        (each.name, _rate(each.requests), _rate(each.refused), _rate(each.used), _time(each.p50), _time(each.p95))
        for each in found.planes
    ]
    silent = f"; silent: {', '.join(found.silent)}" if found.silent else ""
    yield [*_table(columns, planes, least=("P50",)), f"binds: {', '.join(found.binds) or 'nothing'}{silent}"]
    yield _table(("REASON", "PER S"), [(name, _rate(rate)) for name, rate in found.reasons[:6]])
    rows = [(each.pool, f"{each.waiting:.0f}", _time(each.wait), f"{each.refused:.0%}") for each in found.queues]
    yield _table(("POOL", "WAITING", "WAIT", "NO ROOM"), rows)
    yield _table(
        ("ROLLOUT", "PHASE", "SHARES"),
        [
            (each.alias, each.phase, ", ".join(f"{arm} {version} {share:.0%}" for arm, version, share in each.arms))
            for each in found.rollouts
        ],
    )
    yield _table(("BUDGET", "USED"), [(each.name, f"{each.share:.0%}") for each in found.budgets])
    yield _table(
        ("PROCESS", "BUSY", "RUNNING", "WAITING", "KV", "VERSIONS"),
        [
            (
                each.process.name,
                f"{each.busy:.0%}",
                f"{each.running:.0f}",
                f"{each.waiting:.0f}",
                None if math.isnan(each.memory) else f"{each.memory:.0%}",
                ", ".join(each.versions),
            )
            for each in found.serving
        ],
        least=("VERSIONS", "WAITING"),
    )
    yield _table(
        ("TENANT", "REQUESTS/S", "REFUSED/S", "TOKENS OR ROWS/S", "ACCELERATORS", "$ AN HOUR"),
        [
            (
                each.name,
                _rate(each.requests),
                _rate(each.refused),
                _rate(each.used),
                f"{each.accelerators:.2f}",
                f"{each.dollars:.2f}",
            )
            for each in found.tenants
        ],
        least=("REFUSED/S",),
    )
    yield _table(("HAPPENED",), [(each,) for each in happened])


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, least: Sequence[str] = ()) -> list[str]:
    return table_lines(columns, rows, least=least) if rows else []


def _looks(every: float, monotonic: Callable[[], float] = time.monotonic) -> Iterator[Overview]:
    from libs.diagnosis import Window
    from libs.diagnosis.overview import overview
    from services.cli.observe import scraping

    begun = time.time() - monotonic()

    def clock() -> float:  # one that is set meanwhile says nothing of rates
        return begun + monotonic()

    places = scraping.places(locate())
    before = scraping.take(places, clock=clock)
    while True:
        time.sleep(max(0.0, before.at + every - clock()))
        after = scraping.take(places, clock=clock)
        if not any(after.texts.values()):
            raise failed("no process of the mesh shows its metrics; see `weir status`")
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
