"""How much of everything `make bench-mesh` measures: its command line, and what a smoke run makes of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from loadtest import stream_search
from loadtest.scenarios import FLAT_TOKENS, paced_tokens

EMPTY_CALLS = 400
UNPACED = ("c64", "flat", "edge", "ttft", "loss")
PACED = ("paced", "streams")
SCENARIOS = ("start", "code", *UNPACED, *PACED)
PACED_STREAMS, PACED_INTERVAL = 100, 0.02
MOST_KILLS = 3
MANY = ("worker.simulated.max_running=4096", "worker.simulated.total_blocks=1048576")
"""Engines that are not what bounds the number of streams."""
SMOKE = {
    "repeats": 1,
    "seconds": 0.5,
    "ttft_seconds": 1.0,
    "paced_streams": 8,
    "probe_seconds": 0.5,
    "search_seconds": 0.1,
    "idle_seconds": 0.5,
    "empty_calls": 40,
}
"""What `--smoke` makes of the options. What requests ask for stays: what a mesh refuses, it refuses then, too."""


def arguments(description: str | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a window")
    parser.add_argument("--ttft-seconds", type=float, default=12.0, help="length of a TTFT run")
    parser.add_argument("--starts", type=int, default=3, help="cold starts of the demo mesh")
    parser.add_argument("--idle-seconds", type=float, default=15.0, help="how long the idle mesh is looked at")
    parser.add_argument("--search-seconds", type=float, default=80.0, help="no number of streams is tried after that")
    parser.add_argument("--smoke", action="store_true", help="one mesh and hardly any windows: figures of no weight")
    parser.add_argument("--set", action="append", default=[], help="passed on to `weir up`")
    parser.add_argument("--nice", type=int, default=0, help="scheduling priority of bench and mesh, -20 to 19")
    parser.add_argument("--profile-with", choices=("py-spy",), help="profile c64, flat and paced; no figures")
    parser.add_argument("--processes", nargs="+", default=[], help="processes to profile; else every Python process")
    parser.add_argument("--profiles", type=Path, default=Path("build/profiles"), help="where raw profiles go")
    parser.set_defaults(
        flat_tokens=FLAT_TOKENS, paced_streams=PACED_STREAMS, probe_seconds=4.0, empty_calls=EMPTY_CALLS
    )
    options = parser.parse_args()
    options.paced_tokens = paced_tokens(options.seconds, PACED_INTERVAL)
    options.probe_tokens = stream_search.probe_tokens(options.probe_seconds, PACED_INTERVAL)
    if options.smoke:
        vars(options).update(SMOKE)
    if options.profile_with:
        options.only = [name for name in options.only if name in ("c64", "flat", "paced")]
    return options
