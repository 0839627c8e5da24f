"""CPU per piece of output and per input of the safety filter, without any transport.

Run: `python -m loadtest.safety_bench [--repeats 5]`. Prints medians over the repeats, in microseconds.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from libs.safety_filter import Pack, compile_pack, rules_from_json

STREAMS = 100
PROSE = (
    "Once upon a time there was a small river that sang from morning to night, and the people of the valley liked to "
    "sit beside it. In spring, when the snow had melted, it told them of the hills; in summer it was quiet. "
) * 40
DENSE = "Call +49 30 1234567 or mail a.b@example.com, card 4111 1111 1111 1111, key wk_abcdEFGH12345678xyz. " * 40


def pieces(text: str, size: int = 4) -> list[str]:
    """Cut a text into pieces of about a token's length."""
    return [text[at : at + size] for at in range(0, len(text), size)]


def stream(pack: Pack, deltas: list[str]) -> float:
    """Feed the pieces to 100 filters in turn and return microseconds per piece."""
    filters = [pack.open_output() for _ in range(STREAMS)]
    started = time.process_time_ns()
    for delta in deltas:
        for one in filters:
            one.feed(delta)
    return (time.process_time_ns() - started) / 1000 / (len(deltas) * STREAMS)


def whole(pack: Pack, text: str) -> float:
    """Check one input and return microseconds."""
    started = time.process_time_ns()
    for _ in range(20):
        pack.check_input([text])
    return (time.process_time_ns() - started) / 1000 / 20


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    path = Path("services/safety/packs/default.json")
    pack = compile_pack("default", 1, rules_from_json(path.read_text(encoding="utf-8")))
    cases: dict[str, Callable[[], float]] = {
        "delta_us_prose": lambda: stream(pack, pieces(PROSE)[:400]),
        "delta_us_dense_in_findings": lambda: stream(pack, pieces(DENSE)[:400]),
        "input_us_2000_characters": lambda: whole(pack, PROSE[:2000]),
        "input_us_2000_characters_dense": lambda: whole(pack, DENSE[:2000]),
    }
    for name, run in cases.items():
        run()
        values = [run() for _ in range(repeats)]
        sys.stdout.write(f"{name} {statistics.median(values):.2f} (min {min(values):.2f}, max {max(values):.2f})\n")


if __name__ == "__main__":
    main()
