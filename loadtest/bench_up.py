"""Measures the cold start: from the start of `weir up` to the first token, in a fresh state directory each time.

    python -m loadtest.bench_up [--repeats 3] [--profile demo]

Dependencies are installed and byte code is compiled beforehand, as after `make setup`; the disk cache is as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from loadtest.machine import machine

PORT_BASE = 24000
"""Away from the default mesh, which may be running."""


def measure(profile: str) -> dict[str, Any]:
    """One start and stop. Returns what `weir up` wrote to last_up.json.

    Raises subprocess.CalledProcessError when the mesh does not come up; its output has been printed.
    """
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        environment = {**os.environ, "WEIR_STATE_DIR": folder, "WEIR_PORT_BASE": str(PORT_BASE)}
        command = [sys.executable, "-m", "services.cli"]
        result = subprocess.run(
            [*command, "up", "--profile", profile], env=environment, capture_output=True, text=True, check=False
        )
        if result.returncode:
            print(result.stdout, result.stderr, sep="\n", file=sys.stderr)
            result.check_returncode()
        try:
            return json.loads((Path(folder) / "last_up.json").read_text(encoding="utf-8"))
        finally:
            subprocess.run([*command, "down"], env=environment, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Prints every repeat, the median and the spread, and one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench_up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", default="demo")
    options = parser.parse_args()
    runs = [measure(options.profile) for _ in range(options.repeats)]
    seconds = [run["to_first_token_s"] for run in runs]
    for run in runs:
        slowest = max(run["ready_s"].items(), key=lambda item: item[1])
        print(f"first token after {run['to_first_token_s']:.2f} s (last ready: {slowest[0]} at {slowest[1]:.2f} s)")
    median = statistics.median(seconds)
    print(f"median {median:.2f} s, from {min(seconds):.2f} to {max(seconds):.2f} s, profile {options.profile}")
    figures = {
        "cold_start_s": median,
        "cold_start_s_max": max(seconds),
        "first_token_ms": statistics.median(run["ttft_ms"] for run in runs),
    }
    summary = {"bench": "up", "figures": figures, "targets": {"cold_start_s": 20}, "machine": machine()}
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
