"""Counters of the mesh's processes, read from their metrics pages."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable, Mapping, Sequence

TIMEOUT = 1.0
"""Seconds per page."""
REFUSALS = {
    "ratelimit": (
        ("weir_ratelimit_edge_total", "outcome", ("ok",)),
        ("weir_ratelimit_reserve_total", "outcome", ("ok", "over_quota", "settled_already")),
    ),
    "admission": (("weir_admission_outcomes_total", "outcome", ("granted",)),),
    "gateway": (("weir_gateway_outcomes_total", "reason", ("",)),),
}
"""By service: the counters of what was refused, the label that says why, and the values that are no refusals."""
_SAMPLE = re.compile(r"(\w+)\{([^}]*)\} ([0-9.eE+-]+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def refusals(pages: Mapping[str, Iterable[str]]) -> dict[str, dict[str, float]]:
    """By service, by reason: how many, over the pages of its processes; what is zero is left out. Pure.

    :param pages: texts in Prometheus' format, by service.
    """
    found: dict[str, dict[str, float]] = {}
    for service, counters in REFUSALS.items():
        for page in pages.get(service, ()):
            for name, labels, value in samples(page):
                for counter, label, fine in counters:
                    if name == counter and value and labels.get(label, "") not in fine:
                        kinds = found.setdefault(service, {})
                        kind = f"{name.split('_')[2]}: {labels[label]}" if len(counters) > 1 else labels[label]
                        kinds[kind] = kinds.get(kind, 0.0) + value
    return found


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
