"""The metrics pages of all processes at about one time: read from them, or kept in a folder."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from libs.diagnosis import Process, Scrape, parse
from services.cli.config import Mesh, NoMeshError

TIMEOUT = 2.0
"""Seconds per page. All are asked at once: who does not answer delays a scrape by no more than this."""
MOST = 32 * 2**20
"""Bytes of a page that are read."""
_AT_ONCE = 32
_ENDING = ".scrape.json"


class Taken(NamedTuple):
    """A scrape as it was read."""

    at: float
    """Seconds since the epoch."""
    texts: Mapping[Process, str | None]
    """Pages in Prometheus' text format; None of a process that did not answer."""

    def scrape(self) -> Scrape:
        """Its values."""
        pages = {process: parse(text) for process, text in self.texts.items() if text is not None}
        return Scrape(self.at, pages, frozenset(self.texts.keys() - pages.keys()))


def places(mesh: Mesh) -> dict[Process, str]:
    """Where the processes of a mesh show their metrics, by process.

    :raises NoMeshError: its description does not say.
    """
    found = {
        Process(name, service, zone): address if "/" in address else f"{address}/metrics"
        for name, service, zone, address in mesh.metrics
    }
    if not found:
        raise NoMeshError(f"{mesh.state / 'mesh.json'} says of no process where its metrics are")
    return found


def take(at: Mapping[Process, str], *, clock: Callable[[], float] = time.time, timeout: float = TIMEOUT) -> Taken:
    """Reads them all, side by side.

    :param at: URLs without their scheme.
    :param clock: seconds since the epoch.
    """
    now = clock()
    with ThreadPoolExecutor(_AT_ONCE) as readers:
        return Taken(now, dict(zip(at, readers.map(lambda place: _read(place, timeout), at.values()), strict=True)))


def _read(place: str, timeout: float) -> str | None:
    try:
        with urllib.request.urlopen(f"http://{place}", timeout=timeout) as answer:
            return str(answer.read(MOST).decode("utf-8", "replace"))
    except (OSError, HTTPException):
        return None


def save(taken: Taken, folder: Path) -> None:
    """Keeps a scrape. It has no user's words in it, and names of tenants and models.

    :raises OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    processes = [{**process._asdict(), "page": text} for process, text in taken.texts.items()]
    path = folder / f"{taken.at:.3f}{_ENDING}"
    path.write_text(json.dumps({"at": taken.at, "processes": processes}), encoding="utf-8")


def kept(folder: Path) -> list[Taken]:
    """What `save` put there, in the order of time.

    :raises OSError: it cannot be read.
    :raises ValueError: something there is no scrape; the message names it.
    """
    return sorted(map(_kept, folder.glob(f"*{_ENDING}")), key=lambda taken: taken.at)


def _kept(path: Path) -> Taken:
    try:
        file = json.loads(path.read_bytes())
        return Taken(float(file["at"]), dict(map(_page, file["processes"])))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is no scrape: {error!r}") from error


def _page(told: Mapping[str, str | None]) -> tuple[Process, str | None]:
    return Process(str(told["name"]), str(told["service"]), str(told["zone"])), told["page"]
