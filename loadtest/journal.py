"""What a gateway's journal costs a request, and how soon it is read after a kill; the last line is JSON.

    python -m loadtest.journal [--quick]

append_us       CPU per request: its opening into a slot, and its end appended, which frees the slot
watermark_us    CPU per mark: the tokens delivered to each of 64 streams, stored once per step
replay_s_100k   until a journal of 100,000 records that nobody acknowledged, left by a process that was killed with as
                many requests running as there are slots, is open again
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from random import Random

from libs.journal import Journal
from loadtest.overload import output

RECORD, OPENING = bytes(range(256)) + bytes(range(200)), bytes(range(256)) + bytes(range(44))
"""As long as the records of requests are."""
STREAMS = 64
TARGETS = {"append_us": "≤ 10", "watermark_us": "≤ 1", "replay_s_100k": "≤ 5"}


def _journal(path: Path) -> Journal:
    return Journal(path, rng=Random(1), max_bytes=1 << 30)


def append_us(path: Path, requests: int) -> float:
    """One of `requests`; the segments' files are made outside of the time, as a thread does it in the gateway."""
    journal, spent = _journal(path), 0.0
    for _ in range(requests // 100):
        started = time.process_time()
        for _ in range(100):
            journal.append(RECORD, journal.begin(OPENING))
        spent += time.process_time() - started
        journal.tend()
    journal.close()
    return spent / (requests // 100 * 100) * 1e6


def watermark_us(path: Path, steps: int) -> float:
    """One of 64 marks of a step."""
    journal = _journal(path)
    slots = [journal.begin(OPENING) for _ in range(STREAMS)]
    started = time.process_time()
    for step in range(steps):
        marks = journal.marks
        for slot in slots:
            marks[slot] = step
    spent = time.process_time() - started
    journal.close()
    return spent / (steps * STREAMS) * 1e6


def replay_s(path: Path, records: int) -> float:
    """Until it is open; scaled to 100,000 records."""
    journal = _journal(path)
    while journal.begin(OPENING) != journal.none:
        pass
    for _ in range(records):
        journal.append(RECORD)
    killed = path.with_name("killed")
    shutil.copytree(path, killed)
    journal.close()
    started = time.perf_counter()
    again = _journal(killed)
    took = time.perf_counter() - started
    if not again.pending or len(again.lost) < STREAMS:
        raise RuntimeError("the journal has not what was put into it")
    again.close()
    return took * 100_000 / records


def measure(*, quick: bool) -> dict[str, float]:
    """The figures of the module's docstring: of each the median of three, of the replay of one."""
    scale = 10 if quick else 1
    with tempfile.TemporaryDirectory(prefix="weir-bench-journal-") as folder:
        root = Path(folder)
        figures = {
            "append_us": statistics.median(append_us(root / f"append-{n}", 50_000 // scale) for n in range(3)),
            "watermark_us": statistics.median(watermark_us(root / f"mark-{n}", 20_000 // scale) for n in range(3)),
            "replay_s_100k": replay_s(root / "replay", 100_000 // scale),
        }
    return {name: round(value, 3) for name, value in figures.items()}


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth as much: figures of little weight")
    parts = output.Parts()
    with parts.part("journal"):
        parts.figures |= measure(quick=parser.parse_args().quick)
    output.finish("journal", parts, TARGETS)


if __name__ == "__main__":
    main()
