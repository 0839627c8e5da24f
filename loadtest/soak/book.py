"""The books of a soak: what every request was told, beside what the mesh recorded of it. Pure.

An answer is compared with the one that the same question got before anything was broken: the simulated engine's tokens
depend on the prompt and on all tokens before them, and on no version, so that one that was lost, repeated or computed
from something else changes the rest of the text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from libs.usage.records import LOST

STREAM, CALL, EMBED, BATCH, PREDICT = "stream", "call", "embed", "batch", "predict"
"""Kinds of requests: over the edge as events; natively and whole; an embedding; events for which nobody waits; a
prediction."""
ON_THE_WAY = frozenset({"gateway", "worker", "predictor", "admission"})
"""Services that an answer, or the right to one, comes from: it is as late as they are. All others are asked within a
bound, or beside the request."""
BUDGET_MS = 1_000
"""Of a question to a service that is asked within a bound: `decide_timeout` of gateways."""
OLD_SECONDS = 60.0
"""From which age on a process is one that has settled."""


ROWS = 5
"""Of each prediction."""
TARGETS: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(
        (
            *("wrong_texts", "doubled_tokens", "records_lost", "records_doubled", "quota_leaks", "stuck_slots"),
            *("kv_blocks_leaked", "usage_error_tokens_finished", "failed_pct"),
        ),
        ("=", 0),
    ),
    "usage_error_tokens": ("<=", 8),
    "usage_error_rows": ("=", 0),
    "longest_gap_s": ("<=", 3),
    "added_p99_ms": ("<=", BUDGET_MS),
    "rss_growth_pct": ("<=", 5),
    "resumed_pct": (">=", 100),
    **dict.fromkeys(("audit_verifies", "usage_reconciles", "all_ready_at_end"), ("=", 1)),
}
"""What is expected; the usage of a stream that was cut may be off by one flush, of at most so many tokens here."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a question is answered with."""

    text: str
    """All of it."""
    ends: tuple[int, ...]
    """Where in the text each token ends, in characters."""
    vector: str = ""
    """The question's embedding, written down."""
    predicted: str = ""
    """What is predicted for the question's rows, written down."""

    def tokens_in(self, text: str) -> int:
        """How many whole tokens a beginning of the text holds."""
        return bisect_right(self.ends, len(text))


@dataclass(slots=True, kw_only=True)
class Seen:
    """One request as its client saw it."""

    kind: str
    """STREAM, CALL, EMBED, BATCH or PREDICT."""
    question: int
    """Number of the question, whose answer is known."""
    requests: list[str] = field(default_factory=list)
    """The mesh's ids of it: one once it is being answered, another each time that it went on where it was; none for one
    that was refused or of which nothing came."""
    text: str = ""
    """What came; of an embedding its vector, of a prediction its outputs, written down."""
    done: bool = False
    """The answer came to its end."""
    begun: bool = False
    """Some of it came."""
    failure: str = ""
    """The closed reason, or what broke."""
    told_tokens: int = 0
    """By the usage at its end."""
    first: float = 0.0
    """Until its first piece came, or all of what comes at once, seconds."""
    gap: float = 0.0
    """Longest silence between two pieces, seconds."""
    resumable: bool = False
    """Its events had ids to go on from."""
    resumed: bool = False
    """It was cut, and went on behind the piece that came last."""
    reconnected: bool = False
    """The connection broke before anything came, and it was sent again over another."""
    at: float = 0.0
    """When it was sent, seconds since the beginning."""
    degraded: bool = False
    """Another model's prediction, or a prior, and flagged as that."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A request's record in the audit log."""

    request: str
    tenant: str
    outcome: str
    tokens: int
    """Delivered, by the record."""
    cost: int
    """Micro-dollars at the prices in force."""
    rows: int = 0
    """Of a prediction."""

    @property
    def vanished(self) -> bool:
        """It died with its gateway before anything was delivered (`libs.usage.records.Used.vanished`)."""
        return self.outcome in LOST and not self.tokens and not self.rows


@dataclass(frozen=True, slots=True)
class Left:
    """What the mesh holds when nothing runs any more."""

    slots: int
    """Generations, sequences and grants that have not ended."""
    blocks: int
    """KV blocks in use."""
    leases: int
    """Open reservations of the limiter."""
    audit_verifies: bool
    all_ready: bool
    spend_off: int = 0
    """Micro-dollars that the limiter counted for the tenant beyond what its records come to."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A time in which something went wrong, seconds since the beginning; `service` is who was slow, if anybody."""

    began: float
    ended: float
    service: str = ""


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory of a process at some time."""

    process: str
    pid: int
    age: float
    """Seconds."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The figures of issue 15, and what they are of."""

    figures: dict[str, float]
    unmeasured: dict[str, str]
    """Figures that there are none of, and why."""
    faults: list[str]
    """A line for each request that something is wrong with."""


@dataclass(slots=True)
class _Sum:
    figures: dict[str, float] = field(default_factory=dict)
    unmeasured: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def verdict(
    seen: Iterable[Seen],
    entries: Iterable[Entry],
    references: Mapping[int, Reference],
    left: Left,
    disturbed: Sequence[Slow] = (),
    resident: Sequence[Resident] = (),
) -> Verdict:
    """All figures that can be told.

    :param disturbed: every fault's time.
    :param resident: memory of processes, looked at now and then.
    """
    requests, records = list(seen), list(entries)
    told = _Sum()
    _texts(requests, references, told)
    _records(requests, records, references, told)
    _ends(requests, told)
    _slow(requests, disturbed, told)
    _growth(resident, told)
    told.figures |= {
        "quota_leaks": left.leases + (left.spend_off != 0),
        "spend_off_microusd": left.spend_off,
        "stuck_slots": left.slots,
        "kv_blocks_leaked": left.blocks,
        "audit_verifies": int(left.audit_verifies),
        "all_ready_at_end": int(left.all_ready),
    }
    return Verdict(told.figures, told.unmeasured, told.faults)


def missed(figures: Mapping[str, float]) -> list[str]:
    """The figures that miss their target, of those that there are."""
    holds = {"=": float.__eq__, "<=": float.__le__, ">=": float.__ge__}
    return [
        name
        for name, (relation, bound) in TARGETS.items()
        if name in figures and not holds[relation](float(figures[name]), float(bound))
    ]


def common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def repeated(expected: str, text: str) -> int:
    """Characters of a wrong text that came twice: the least piece to take out so that it is a beginning of the expected
    one, and that the text before it ends with; 0 where there is none."""
    if expected.startswith(text):
        return 0
    same = common(expected, text)
    for length in range(1, len(text)):
        for at in range(max(0, same - length), same + 1):
            again = text[at : at + length]
            if (
                len(again) == length
                and text[:at].endswith(again)
                and expected.startswith(text[:at] + text[at + length :])
            ):
                return length
    return 0


def _whole(known: Reference, kind: str) -> str:
    return known.vector if kind == EMBED else known.predicted


def _texts(requests: Sequence[Seen], references: Mapping[int, Reference], told: _Sum) -> None:
    wrong = doubled = 0
    for each in requests:
        known = references[each.question]
        if each.kind in (EMBED, PREDICT):
            if each.done and not each.degraded and each.text != _whole(known, each.kind):
                wrong += 1
                told.faults.append(f"{each.requests}: another answer to {each.kind}")
            continue
        good = each.text == known.text if each.done else known.text.startswith(each.text)
        if good:
            continue
        wrong += 1
        twice = repeated(known.text, each.text)
        doubled += max(1, known.tokens_in(known.text[:twice])) if twice else 0
        told.faults.append(f"{each.requests}: {len(each.text)} characters, not those of the undisturbed answer")
    told.figures |= {"wrong_texts": wrong, "doubled_tokens": doubled}


def _records(
    requests: Sequence[Seen],
    records: Sequence[Entry],
    references: Mapping[int, Reference],
    told: _Sum,
) -> None:
    # What vanished was sent again by the edge, under its id: the record of that time is the request's.
    answered = {each.request for each in records if not each.vanished}
    records = [each for each in records if not (each.vanished and each.request in answered)]
    count = Counter(each.request for each in records)
    by_id = {each.request: each for each in records}
    lost = doubled = 0
    worst, worst_done, error_rows = 0, 0, 0
    for each in requests:
        missing = [request for request in each.requests if not count[request]]
        twice = [request for request in each.requests if count[request] > 1]
        lost, doubled = lost + len(missing), doubled + len(twice)
        told.faults += [f"{request}: no record; {_fate(each)}" for request in missing]
        told.faults += [f"{request}: {count[request]} records" for request in twice]
        if each.kind == EMBED or missing or not each.requests:
            continue
        if each.kind == PREDICT:
            error_rows = max(error_rows, off := abs(by_id[each.requests[-1]].rows - ROWS))
            told.faults += [f"{each.requests}: {by_id[each.requests[-1]].rows} rows recorded"] * bool(off)
            continue
        billed = sum(by_id[request].tokens for request in each.requests)
        error = abs(billed - references[each.question].tokens_in(each.text))
        if each.done and not each.resumed:  # else a part of it was cut, and what left it may not have come (ADR 35)
            error = max(error, abs(billed - each.told_tokens))
            worst_done = max(worst_done, error)
        worst = max(worst, error)
        if error:
            told.faults.append(f"{each.requests}: {billed} tokens recorded, {each.told_tokens} told; {_fate(each)}")
    told.figures |= {
        "records_lost": lost,
        "records_doubled": doubled,
        "usage_error_tokens": worst,
        "usage_error_tokens_finished": worst_done,
        "usage_error_rows": error_rows,
    }


def _fate(seen: Seen) -> str:
    return "answered" if seen.done else seen.failure or "under way"


def _slow(requests: Sequence[Seen], disturbed: Sequence[Slow], told: _Sum) -> None:
    """What a slow service adds to the p99 of first pieces: those of requests sent while it was slow, over those sent
    while nothing was wrong. With few of the former the p99 is the worst of them."""
    begun = [each for each in requests if each.begun]
    peace = [each.first for each in begun if not any(one.began - 1 <= each.at < one.ended + 3 for one in disturbed)]
    late: dict[str, list[float]] = {}
    for one in disturbed:
        if one.service:
            late.setdefault(one.service, []).extend(each.first for each in begun if one.began <= each.at < one.ended)
    added = {name: round(1e3 * (_p99(late[name]) - _p99(peace))) for name in sorted(late) if late[name] and peace}
    told.figures |= {f"added_p99_ms_{name}": value for name, value in added.items()}
    if bounded := [value for name, value in added.items() if name not in ON_THE_WAY]:
        told.figures["added_p99_ms"] = max(bounded)
    else:
        told.unmeasured["added_p99_ms"] = "no service that is asked within a bound was slow"


def _p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def _growth(resident: Sequence[Resident], told: _Sum) -> None:
    """How much a process grew from the age at which it has settled to when it was looked at last, for the longest."""
    lives: dict[tuple[str, int], list[Resident]] = {}
    for each in resident:
        if each.age >= OLD_SECONDS:
            lives.setdefault((each.process, each.pid), []).append(each)
    grown = {
        f"{name} ({pid})": (looks[-1].size / looks[0].size - 1) * 100
        for (name, pid), looks in lives.items()
        if looks[-1].age >= 2 * looks[0].age
    }
    if grown:
        told.figures["rss_growth_pct"] = round(max(grown.values()), 1)
        told.faults += [f"{name} grew by {value:.1f}%" for name, value in grown.items() if value > 5]
    else:
        told.unmeasured["rss_growth_pct"] = f"no process lived for {2 * OLD_SECONDS:.0f} s"


def _ends(requests: Sequence[Seen], told: _Sum) -> None:
    unbegun = [each for each in requests if not each.begun]
    failed = [each for each in unbegun if not each.done]
    cut = [each for each in requests if each.begun and (not each.done or each.resumed)]
    for each in failed:
        told.faults.append(f"{each.at:.1f} s: {each.kind}: {each.failure}")
    told.figures |= {
        "requests": len(requests),
        "finished": sum(each.done for each in requests),
        "failed": len(failed),
        "failed_pct": round(100 * len(failed) / max(1, len(requests)), 3),
        "reconnected": sum(each.reconnected for each in requests),
        "cut": len(cut),
        "longest_gap_s": round(max((each.gap for each in requests if each.done), default=0.0), 2),
    }
    if cut and any(each.resumable for each in requests):
        told.figures["resumed_pct"] = round(100 * sum(each.done for each in cut) / len(cut), 2)
    else:
        told.unmeasured["resumed_pct"] = "no stream was cut" if not cut else "events carry no ids to resume from"
