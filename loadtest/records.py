"""What the store of records does: how fast the audit log is projected, how soon a page comes; the last line is JSON.

    python -m loadtest.records [--quick] [--rows N] [--put] [--database URL]

rows_per_s    records projected in a second, of the last 200,000: with all rows and indexes that there are by then
page_ms_p95   a page of 50 of a tenant, a key, a model, a request, an outcome, at random, beside `rows` (10 million)
rss_mb        the process's resident memory at the end; `rss_growth_mb` since a tenth of what is projected was
rows_put      with `--put`: so many were not projected from a log, but put in by the store's own inserts, and indexed
              afterwards; the last million is projected
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from libs.auditlog.chain import encode_entry
from libs.usage.records import Event, Used
from loadtest.overload import output
from services.records.queries import Question, Wanted
from services.records.schema import position
from services.records.store import Position, Store

ROWS, LAST, BATCH, SEGMENT = 10_000_000, 200_000, 2_000, 30_000
"""Rows at the end; of which are timed; records of an answer of the audit service, of a segment of its log."""
BEHIND_PUT = 1_000_000
"""Rows that are projected behind those that were put in."""
TENANTS, KEYS, MODELS = 200, 5, 20
PER_SECOND = 50
"""Requests of a second of the log's time."""
PAGES = 300
BEGIN = 1_793_527_200
TARGETS = {"rows_per_s": "≥ 5000", "page_ms_p95": "≤ 50"}
_WORDS = '{"class":"request","id":"%s","tenant":"t%d","time":"%s","usage":%s,"key":"2026-11/%016x","sealed":"%s"}'


def lines(at: Position, rows: int) -> Iterator[bytes]:
    """So many of a log, behind a position."""
    prev = bytes.fromhex(at.hash)
    for sequence, name, tenant, moment, used in _requests(at, rows):
        words = (name, tenant, moment, json.dumps(used, separators=(",", ":")), tenant, "x" * 300)
        prev, line = encode_entry(prev, sequence, (_WORDS % words).encode())
        yield line


def _requests(at: Position, rows: int) -> Iterator[tuple[int, str, int, str, dict[str, Any]]]:
    """Sequence, id, tenant, time and usage of each."""
    rng = random.Random(at.sequence)
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
        yield sequence, f"r{sequence:031d}", tenant, moment, used


def put(store: Store, at: Position, rows: int) -> Position:
    """Where the store is when so many rows are in it, which no log is read for. SQLite."""
    with store._begin() as connection:
        named = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'requests' AND sql IS NOT NULL"
        indexes = connection.exec_driver_sql(named).all()
        for name, _ in indexes:
            connection.exec_driver_sql(f"DROP INDEX {name}")
    for begin in range(0, rows, SEGMENT):
        found = [
            (sequence, Used(name, moment, Event(**used, tenant=f"t{tenant}"), f"2026-11/{tenant:016x}"))
            for sequence, name, tenant, moment, used in _requests(at, min(SEGMENT, rows - begin))
        ]
        with store._begin() as connection:
            store._put(connection, found, at.sequence + 1)
            at = at._replace(sequence=at.sequence + len(found))
            connection.execute(position.update().values(at._asdict()))
    for _, statement in indexes:
        with store._begin() as connection:
            connection.exec_driver_sql(statement)
    return at


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


def measure(url: str, rows: int, pages: int, *, putting: bool = False) -> dict[str, float]:
    """All of it."""
    store, process = Store(url, statement_seconds=60), psutil.Process()
    at = store.open()
    there = rows - min(BEHIND_PUT, rows // 2) if putting else 0
    if there:
        at = put(store, at, there)
    last = min(LAST, (rows - there) // 2)
    at, _ = fill(store, at, (rows - there) // 10)
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
        "rows_put": there,
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
    parser.add_argument("--put", action="store_true", help="put most rows in, rather than project them (SQLite)")
    parser.add_argument("--database", help="as the service's setting; else SQLite in a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        url = options.database or f"sqlite:///{Path(folder) / 'records.sqlite'}"
        parts = output.Parts()
        with parts.part("records"):
            rows, pages = (20_000, 70) if options.quick else (options.rows, PAGES)
            parts.figures |= measure(url, rows, pages, putting=options.put)
    output.finish("records", parts, TARGETS)


if __name__ == "__main__":
    main()
