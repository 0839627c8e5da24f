"""Every bench runs and ends with its line of JSON, at its shortest: figures of no weight, which nothing judges here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from loadtest.peers.contenders import version
from tests.support.mesh import ROOT

BENCHES = {
    "admission": "loadtest.admission_bench --quick",
    "edge": "loadtest.bench_edge --smoke",
    "engine": "loadtest.bench_engine --smoke",
    "fairness": "loadtest.bench_fairness --smoke",
    "isolation": "loadtest.isolation_bench --repeats 1 --steps 5",
    "journal": "loadtest.journal --quick",
    "mesh": "loadtest.mesh --smoke",
    "observe": "loadtest.bench_observe --smoke",
    "overload": "loadtest.bench_overload --smoke",
    "peers": "loadtest.bench_peers --smoke --only envoy weir",
    "predict": "loadtest.bench_predict --smoke",
    "push": "loadtest.bench_push --smoke",
    "quota": "loadtest.bench_quota --smoke",
    "records": "loadtest.records --quick",
    "registry": "loadtest.bench_registry --quick --watchers 3 --samples 5",
    "restore": "loadtest.drill_restore --quick",
    "rollout": "loadtest.bench_rollout --quick --only simulated",
    "safety": "loadtest.bench_safety --quick",
    "up": "loadtest.bench_up --repeats 1 --profile simulated --idle-seconds 0.5",
    "xds": "loadtest.bench_xds --samples 5",
}
"""By the name of their target in the Makefile: the module and its shortest run. Other drills than
that of a restore have tests of their own."""
ROLLOUT = "rollout"


def test_none_is_left_out() -> None:
    targets = set(re.findall(r"^(?:bench-|drill-(?=restore))(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets == BENCHES.keys()


def line_of(name: str, command: str = "") -> dict[str, Any]:
    """What a bench ends with."""
    words = [sys.executable, "-m", *(command or BENCHES[name]).split()]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            out, said = running.communicate(timeout=230)
        except subprocess.TimeoutExpired:
            running.terminate()  # it stops its mesh
            out, said = running.communicate(timeout=60)
    assert running.returncode == 0, f"{said}\n{out}"
    line = json.loads(out.splitlines()[-1])
    assert line["bench"] == name
    assert line["figures"]
    assert line["machine"]["cpus"]
    return line


@pytest.mark.parametrize("name", sorted(BENCHES.keys() - {ROLLOUT}))
def test_it_ends_with_its_figures(name: str) -> None:
    line = line_of(name)
    if name != "engine":  # of which this is a part
        assert line["targets"].keys() <= line["figures"].keys()


def test_the_rollouts_bench_ends_and_finds_only_what_is_faulty() -> None:
    """Its simulated part: the others need minutes of a mesh."""
    line = line_of(ROLLOUT)
    for bias in ("slower_successes", "few_keys", "unequal_tenants"):
        assert line["figures"][f"healthy_rollbacks_{bias}"] == 0
        assert line["targets"][f"healthy_rollbacks_{bias}"] == "= 0"
    assert 0 < line["figures"]["simulated_errors_30pct_s_p50"] < 60
    # No request ends: the deadline of 120 s is what tells.
    assert 120 < line["figures"]["simulated_hangs_always_s_p50"] < 200


def test_the_peers_that_are_installed_are_measured() -> None:
    there = [name for name in ("litellm", "portkey") if version(name)]
    if not there:
        pytest.skip("neither LiteLLM nor Portkey is installed: make peers-env")
    figures = line_of("peers", f"loadtest.bench_peers --smoke --only {' '.join(there)}")["figures"]
    assert {f"cpu_ms_per_request_c64_{name}" for name in there} <= figures.keys()
    assert all(figures[f"requests_per_s_{name}"] > 0 for name in there)
