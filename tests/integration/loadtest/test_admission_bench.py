"""Admission's bench runs and ends as every bench does."""

from __future__ import annotations

import json
import subprocess
import sys

from loadtest.admission_bench import TARGETS
from tests.support.mesh import ROOT


def test_it_ends_with_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.admission_bench", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["bench"] == "admission"
    assert TARGETS.keys() | {"grants_per_s", "refusal_cpu_us_admission"} <= line["figures"].keys()
    assert all(value > 0 for value in line["figures"].values())
    assert line["machine"]["cpus"]
