"""Counters of the mesh's processes, read from their metrics pages."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable, Mapping, Sequence

TIMEOUT = 1.0
"""Seconds per page."""
_SAMPLE = re.compile(r"(\w+)\{([^}]*)\} ([0-9.eE+-]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def fetch(addresses: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The pages that can be read, by service; the others are left out.

    :param addresses: "host:port" of metrics servers, by service.
    """
    pages: dict[str, list[str]] = {}
    for service, places in addresses.items():
        for place in places:
            try:
                with urllib.request.urlopen(f"http://{place}/metrics", timeout=TIMEOUT) as answer:
                    pages.setdefault(service, []).append(answer.read().decode("utf-8", "replace"))
            except OSError:
                continue
    return pages


def samples(page: str) -> Iterable[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each sample of a page that has labels. Pure."""
    for line in page.splitlines():
        match = _SAMPLE.match(line)
        if match is not None:
            yield match[1], dict(_LABEL.findall(match[2])), float(match[3])
