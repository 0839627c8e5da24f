"""What locust's tables show of an answer, and the figures of a whole run. Pure.

Rows by type: SSE and gRPC are whole answers, failures among them; TTFT, ITL (every gap), refused (by reason), version
(who answered) and operator (what a rollout reached) are rows beside them that do not count in "Aggregated".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from loadtest.locust.messages import CHAT, INTERNAL, OPERATOR, Told
from loadtest.overload.samples import OK, REFUSALS

TYPES = {CHAT: "SSE", INTERNAL: "gRPC"}
TTFT, ITL, REFUSED, VERSION, ROLLOUT = "TTFT", "ITL", "refused", "version", "operator"
PROMOTED = "promoted"
FAILED = "rollout failed"


@dataclass(frozen=True, slots=True)
class Row:
    """One entry in one row of the tables."""

    type: str
    name: str
    ms: float
    tokens: int = 0
    """Shown as the size."""
    failure: str = ""
    aside: bool = True
    """It does not count in "Aggregated"."""


def rows(user: str, told: Told) -> Iterator[Row]:
    """The entries of one answer to a kind of user."""
    ms = _ms(told.seconds)
    if user == OPERATOR:
        yield from (Row(ROLLOUT, f"rollout {step}", _ms(at)) for step, at in told.steps)
        if told.outcome != OK:
            yield Row(ROLLOUT, FAILED, ms, failure=f"{told.outcome}: {told.note}")
        return
    if is_refusal(told):
        yield Row(REFUSED, f"{user} {told.outcome}", ms)
        return
    failure = "" if told.outcome == OK else told.outcome
    yield Row(TYPES[user], user, ms, told.tokens, failure, aside=False)
    if told.version:
        yield Row(VERSION, told.version, ms, told.tokens)
    if told.events:
        yield Row(TTFT, user, _ms(told.events[0]))
    for early, late in pairwise(told.events):
        yield Row(ITL, user, _ms(late - early))


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)


def is_refusal(told: Told) -> bool:
    """Refused with one of the mesh's own reasons before anything was delivered: an answer, and no failure."""
    return told.outcome.startswith(REFUSALS) and not told.events


def bucket(ms: float) -> float:
    """A time as it is counted: to a hundredth of itself or finer, so that gaps of a few milliseconds can be told apart
    (locust's own buckets are whole milliseconds) and a row has some hundreds of buckets."""
    if ms <= 0.0:
        return 0.0
    return round(ms, 2 - math.floor(math.log10(ms)))


class Entry(Protocol):
    """A row as locust keeps it (`locust.stats.StatsEntry`)."""

    method: str
    name: str
    num_requests: int
    num_failures: int
    total_content_length: int
    response_times: Mapping[float, int]


def figures(entries: Iterable[Entry], *, seconds: float) -> dict[str, float]:
    """Of a run that took so long; times in milliseconds. What did not happen is left out."""
    known = list(entries)
    answers = [each for each in known if each.method in TYPES.values()]
    failed = sum(each.num_failures for each in answers)
    refused = {each.name: each.num_requests for each in known if each.method == REFUSED}
    requests = sum(each.num_requests for each in answers) + sum(refused.values())
    found: dict[str, float] = {
        "requests": requests,
        "requests_per_s": requests / seconds,
        "tokens_per_s": sum(each.total_content_length for each in answers) / seconds,
        "failed_requests": failed,
        "failed_share": failed / requests if requests else math.nan,
        "refused_share": sum(refused.values()) / requests if requests else math.nan,
    }
    by_reason: Counter[str] = Counter()
    for name, count in refused.items():
        by_reason[name.partition(" ")[2]] += count
    found |= {f"refused_{reason.lower()}": count for reason, count in sorted(by_reason.items())}
    for prefix, type_ in (("ttft", TTFT), ("itl", ITL)):
        for user in TYPES:
            found |= _quantiles(f"{prefix}_ms_{user}", [e for e in known if (e.method, e.name) == (type_, user)])
    for user in TYPES:
        found |= _quantiles(f"e2e_ms_{user}", [each for each in answers if each.name == user])
    if rollouts := {each.name: each.num_requests for each in known if each.method == ROLLOUT}:
        found["rollouts_promoted"] = rollouts.get(f"rollout {PROMOTED}", 0)
        found["rollouts_failed"] = rollouts.get(FAILED, 0)
    return found


def _quantiles(name: str, entries: Iterable[Entry]) -> dict[str, float]:
    counts: Counter[float] = Counter()
    for entry in entries:
        counts.update(entry.response_times)
    return {f"{name}_p{q:g}": quantile(counts, q / 100) for q in (50, 95, 99)} if counts else {}


def quantile(counts: Mapping[float, int], q: float) -> float:
    """The q-quantile (0 < q ≤ 1) of values with their counts by nearest rank.

    :raises ValueError: there are no values.
    """
    rank = max(1, math.ceil(q * sum(counts.values()) - 1e-9))
    for value in sorted(counts):
        rank -= counts[value]
        if rank <= 0:
            return value
    raise ValueError("no values")


def default_targets(users: Iterable[str]) -> dict[str, str]:
    """What a run with these kinds of users must meet unless told otherwise: what deploy/seed declares for the tier of
    weir-fast, hardly a failure, and each rollout promoted."""
    known = set(users)
    targets = {"failed_share": "≤ 0.001"}
    for user in TYPES:
        if user in known:
            targets |= {f"ttft_ms_{user}_p95": "≤ 2000", f"itl_ms_{user}_p95": "≤ 150"}
    if OPERATOR in known:
        targets |= {"rollouts_promoted": "≥ 1", "rollouts_failed": "= 0"}
    return targets


def parse_target(text: str) -> tuple[str, str]:
    """ "ttft_ms_chat_p95<=500" as name and target; relations are ≤ or <=, ≥ or >=, and =.

    :raises ValueError: it is none.
    """
    for written, relation in (("<=", "≤"), (">=", "≥"), ("≤", "≤"), ("≥", "≥"), ("=", "=")):
        name, found, bound = text.partition(written)
        if found:
            return name.strip(), f"{relation} {float(bound):g}"
    raise ValueError(f"{text!r}: expected FIGURE<=NUMBER, such as ttft_ms_chat_p95<=500")
