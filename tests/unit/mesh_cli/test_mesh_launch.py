"""How services are started: what they share, and which run with another interpreter than the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from libs.supervisor.spec import READY_TIMEOUT, ProcessSpec
from services.cli.mesh.plan import SHARED, build
from services.cli.mesh.preflight import check_interpreters
from services.cli.mesh.site import ROOT, load_profile, load_topology
from services.cli.mesh.sites import Laptop
from services.cli.mesh.topology import Launch, TopologyError, parse_overrides, split_launch
from services.cli.mesh.units import Plan

SITE = Laptop(root=ROOT, state=Path("/state"), port_base=18000, interpreter="python", etcd="etcd", envoy="envoy")


def plan(profile: str, *overrides: str) -> Plan:
    return build(load_topology(ROOT), SITE, lambda **_: "", load_profile(ROOT, profile), parse_overrides(overrides))


def worker(of: Plan, name: str) -> tuple[ProcessSpec, dict]:
    [spec] = [each for each in of.processes if each.name == name]
    return spec, json.loads(of.files[Path(f"/state/config/{name}.json")])


def test_only_the_worker_on_vllm_runs_with_its_python():
    vllm = plan("vllm")
    spec, settings = worker(vllm, "worker-a")
    assert spec.argv[:3] == (str(ROOT / "build/vllm-env/bin/python"), "-m", "services.worker")
    assert spec.ready_timeout == 300
    assert settings["engine"] == "vllm"
    assert "process" not in settings
    other, settings = worker(vllm, "worker-b")
    assert (other.argv[0], other.ready_timeout) == ("python", READY_TIMEOUT)
    assert "engine" not in settings
    assert {each.argv[0] for each in vllm.processes} - {spec.argv[0]} == {"python", "etcd", "envoy"}
    assert {each.name for each in vllm.processes if not each.fork} == {"worker-a", "etcd", "envoy"}


def test_what_all_share_has_no_metrics_and_no_threads():
    """Or every process would show metrics of others, and a fork would lose the thread."""
    told = "from prometheus_client import REGISTRY; import os, sys; print(*REGISTRY._names_to_collectors, sep=',')"
    code = f"import {', '.join(SHARED)}\n{told}; print(len(os.listdir('/proc/self/task')), 'torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, rest = run.stdout.split("\n", 1)
    assert {each.split("_")[0] for each in names.split(",")} == {"process", "python"}
    assert rest.split() == ["1", "False"]


def test_an_override_moves_the_environment():
    spec, _ = worker(plan("vllm", "worker-a.process.python=/elsewhere/bin/python"), "worker-a")
    assert spec.argv[0] == "/elsewhere/bin/python"


def test_a_misspelt_launch_is_told_with_its_process():
    assert split_launch("worker-a", {"pool": "demo"}) == (Launch(), {"pool": "demo"})
    with pytest.raises(TopologyError, match=r"worker-a: process: .*pyhton"):
        split_launch("worker-a", {"process": {"pyhton": "python"}})


def test_a_missing_interpreter_is_told_before_anything_starts(tmp_path):
    faults = check_interpreters({"worker-a": str(tmp_path / "python"), "worker-b": sys.executable})
    assert len(faults) == 1
    assert "worker-a" in faults[0]
    assert str(tmp_path / "python") in faults[0]
