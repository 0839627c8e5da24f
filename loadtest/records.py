"""What the store of records does: how fast the audit log is projected, how soon a page comes; the last line is JSON.

    python -m loadtest.records [--quick] [--rows N] [--database URL]

rows_per_s    records projected in a second, of the last 200,000: with all rows and indexes that there are by then
page_ms_p95   a page of 50 of a tenant, a key, a model, a request, an outcome, at random, beside `rows` (10 million)
rss_mb        the process's resident memory at the end; `rss_growth_mb` since a tenth of the rows
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from libs.auditlog.chain import encode_entry
from loadtest.overload import output
from services.records.queries import Question, Wanted
from services.records.store import Position, Store

ROWS, LAST, BATCH, SEGMENT = 10_000_000, 200_000, 2_000, 30_000
"""Rows at the end; of which are timed; records of an answer of the audit service, of a segment of its log."""
TENANTS, KEYS, MODELS = 200, 5, 20
PER_SECOND = 50
"""Requests of a second of the log's time."""
PAGES = 300
BEGIN = 1_793_527_200
TARGETS = {"rows_per_s": "≥ 5000", "page_ms_p95": "≤ 50"}
_WORDS = '{"class":"request","id":"%s","tenant":"t%d","time":"%s","usage":%s,"key":"2026-11/%016x","sealed":"%s"}'


def lines(at: Position, rows: int) -> Iterator[bytes]:
    """So many of a log, behind a position."""
    prev, rng = bytes.fromhex(at.hash), random.Random(at.sequence)
    for sequence in range(at.sequence + 1, at.sequence + rows + 1):
        tenant, model = int(rng.paretovariate(1)) % TENANTS, rng.randrange(MODELS)
        used = {
            "completion_tokens": rng.randrange(1, 400),
            "key_id": f"k{tenant}-{rng.randrange(KEYS)}",
            "model": f"m{model}",
            "model_version": f"m{model}@{rng.randrange(2)}",
            "operation": "chat",
            "outcome": "stop" if rng.random() < 0.99 else "error",
            "prompt_tokens": 500,
            "queue_class": "paid",
            "spend_microusd": 700,
        }
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(BEGIN + sequence // PER_SECOND))
        words = (f"r{sequence:031d}", tenant, moment, json.dumps(used, separators=(",", ":")), tenant, "x" * 300)
        prev, line = encode_entry(prev, sequence, (_WORDS % words).encode())
        yield line


def fill(store: Store, at: Position, rows: int) -> tuple[Position, float]:
    """Where the store is then, and the seconds that it took to project."""
    spent = 0.0
    for begin in range(0, rows, BATCH):
        made = list(lines(at, min(BATCH, rows - begin)))
        started = time.perf_counter()
        at = store.project(at, made, segment=at.sequence // SEGMENT * SEGMENT + 1, base=0)
        spent += time.perf_counter() - started
    return at, spent


def page_ms(store: Store, rows: int, pages: int) -> list[float]:
    """Of each question, in order of time."""
    rng, found = random.Random(1), []
    for _ in range(pages):
        tenant = int(rng.paretovariate(1)) % TENANTS
        equal = rng.choice(
            (
                {"tenant": f"t{tenant}"},
                {"tenant": f"t{tenant}", "outcome": "error"},
                {"key": f"k{tenant}-{rng.randrange(KEYS)}"},
                {"model": f"m{rng.randrange(MODELS)}"},
                {"id": f"r{rng.randrange(1, rows):031d}"},
                {"outcome": "never"},
                {},
            )
        )
        behind = ((BEGIN + rng.randrange(rows) // PER_SECOND) * 1000, 0) if rng.random() < 0.5 else None
        started = time.perf_counter()
        store.page(Wanted(equal=equal, size=50, behind=behind))
        found.append((time.perf_counter() - started) * 1000)
    return sorted(found)


def measure(url: str, rows: int, pages: int) -> dict[str, float]:
    """All of it."""
    store, process = Store(url, statement_seconds=60), psutil.Process()
    at, last = store.open(), min(LAST, rows // 2)
    at, _ = fill(store, at, rows // 10)
    early = process.memory_info().rss
    at, _ = fill(store, at, rows - last - at.sequence)
    at, spent = fill(store, at, last)
    took = page_ms(store, rows, pages)
    started = time.perf_counter()
    store.sums(Question(by=("day", "version"), tenant="t1"))
    sums = (time.perf_counter() - started) * 1000
    rss = process.memory_info().rss
    store.close()
    return {
        "rows": rows,
        "rows_per_s": round(last / spent),
        "page_ms_p50": round(took[len(took) // 2], 2),
        "page_ms_p95": round(took[len(took) * 95 // 100], 2),
        "usage_ms": round(sums, 2),
        "rss_mb": round(rss / 2**20, 1),
        "rss_growth_mb": round((rss - early) / 2**20, 1),
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20,000 rows: whether it runs")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--database", help="as the service's setting; else SQLite in a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        url = options.database or f"sqlite:///{Path(folder) / 'records.sqlite'}"
        parts = output.Parts()
        with parts.part("records"):
            parts.figures |= measure(url, 20_000 if options.quick else options.rows, 70 if options.quick else PAGES)
    output.finish("records", parts, TARGETS)


if __name__ == "__main__":
    main()
