"""locust against a small mesh: people, services and an operator at once, tables, figures, exit status, nothing left."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.mesh import ROOT, STREAMS_ONLY, Mesh, eventually

ENVIRONMENT = Path(os.environ.get("LOCUST_ENV", ROOT / "build" / "locust-env"))
SHORT = ("--users", "12", "--spawn-rate", "12", "--think", "0.3", "--stop-timeout", "10")
ROLLOUT = ("--rollout-step-seconds", "1", "--rollout-samples", "3")
SLOW_MACHINE = ("ttft_ms_chat_p95", "itl_ms_chat_p95", "ttft_ms_internal_p95", "itl_ms_internal_p95")
"""What a busy machine may miss."""


@pytest.fixture(scope="module")
def locust() -> str:
    """The program, in the environment that `make locust` makes."""
    subprocess.run([ROOT / "bin" / "locust-env", str(ENVIRONMENT)], check=True, timeout=200)
    return str(ENVIRONMENT / "bin" / "locust")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with Mesh(tmp_path_factory.mktemp("locust"), profile="simulated", settings=STREAMS_ONLY) as running:
        # One of the two tenants is soon refused.
        running.weir("set", "limits", "globex/*", "requests_per_minute=12", "--reason", "a test")
        yield running


def begin(locust: str, mesh: Mesh, folder: Path, *options: str, **environ: str) -> subprocess.Popen[str]:
    """Without a word about the mesh: what `weir` knows is enough."""
    command = [locust, "--config", "loadtest/locust/locust.conf", "--headless", "--csv", str(folder / "run"), *SHORT]
    return subprocess.Popen(
        [*command, "--html", str(folder / "run.html"), *options],
        cwd=ROOT,
        env={**mesh.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(run: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """Its last line, and what it said besides."""
    out, said = run.communicate(timeout=120)
    assert out, said
    return json.loads(out.splitlines()[-1]), said


def targets(*names: str, relation: str = "<=1000000") -> Sequence[str]:
    return [part for name in names for part in ("--target", name + relation)]


def at_home(mesh: Mesh) -> bool:
    """The alias points where it did, and no rollout of it is under way."""
    alias = mesh.weir_json("get", "aliases", "weir-fast")
    rollout = json.loads(mesh.weir("rollout", "status", "weir-fast", "-o", "json").stdout)
    return '"weir-fast@1"' in json.dumps(alias) and rollout_phase(rollout) in {"promoted", "rolled_back", "aborted"}


def rollout_phase(status: dict[str, Any]) -> str:
    return str(status["rollout"]["state"]["phase"]).removeprefix("ROLLOUT_PHASE_").lower()


def test_all_three_at_once(locust: str, mesh: Mesh, tmp_path: Path) -> None:
    run = begin(locust, mesh, tmp_path, "-t", "25s", *ROLLOUT, *targets(*SLOW_MACHINE))
    result, said = end(run)
    figures = result["figures"]
    assert run.returncode == 0, said
    assert result["bench"] == "locust"
    assert result["machine"]["cpus"]
    assert result["targets"].keys() <= figures.keys()
    assert figures["failed_requests"] == 0
    assert figures["refused_quota_requests"] > 0, "a refusal is no failure"
    assert figures["rollouts_promoted"] >= 1
    assert 0.0 < figures["generator_cores"] < 1.0
    with (tmp_path / "run_stats.csv").open() as file:
        rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}
    of_chats, first = rows["SSE", "chat"], rows["TTFT", "chat"]
    assert int(of_chats["Request Count"]) == int(first["Request Count"]) > 0
    assert 0.0 < float(first["50%"]) < float(of_chats["50%"])
    assert int(rows["ITL", "chat"]["Request Count"]) > int(first["Request Count"])
    assert int(rows["refused", "chat QUOTA_REQUESTS"]["Failure Count"]) == 0
    assert int(rows["version", "weir-fast@1-locust"]["Request Count"]) > 0, "the candidate answered some"
    whole = int(of_chats["Request Count"]) + int(rows["gRPC", "internal"]["Request Count"])
    assert int(rows["", "Aggregated"]["Request Count"]) == whole
    assert at_home(mesh)
    keys = [mesh.env[name] for name in ("WEIR_KEY_ACME", "WEIR_KEY_GLOBEX")]
    assert not any(key in said or key in (tmp_path / "run.html").read_text() for key in keys)


def test_a_missed_target_is_its_exit_status(locust: str, mesh: Mesh, tmp_path: Path) -> None:
    """Told everything, as of a mesh elsewhere: by flags and by the environment, without the state directory."""
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"acme": mesh.env["WEIR_KEY_ACME"]}))
    asked = ("--host", mesh.env["WEIR_EDGE_TLS_URL"], "--keys", str(keys), "-t", "4s")
    elsewhere = {"WEIR_STATE_DIR": str(tmp_path), "WEIR_LOAD_CA": mesh.env["WEIR_CA"]}
    run = begin(locust, mesh, tmp_path, *asked, *targets("ttft_ms_chat_p50", relation="<=0.01"), **elsewhere)
    result, said = end(run)
    assert run.returncode == 1
    assert "ttft_ms_chat_p50 = " in said
    assert result["figures"]["failed_requests"] == 0
    assert not any("internal" in name or "rollout" in name for name in result["targets"]), "they were not described"


def test_stopped_in_the_middle_of_a_rollout_it_leaves_the_mesh_as_it_was(
    locust: str, mesh: Mesh, tmp_path: Path
) -> None:
    run = begin(locust, mesh, tmp_path, "-t", "60s", "--rollout-step-seconds", "60")

    def canary() -> bool:
        found = mesh.weir("rollout", "status", "weir-fast", "-o", "json", check=False)
        return found.returncode == 0 and rollout_phase(json.loads(found.stdout)) == "canary"

    eventually(canary, seconds=60, what="a canary")
    # As from a terminal: everybody gets it.
    os.killpg(run.pid, signal.SIGINT)
    _, said = end(run)
    assert run.returncode == 1, "no rollout was promoted"
    assert "sending process" not in said
    assert at_home(mesh)


def test_a_run_without_its_sender_ends_at_once(locust: str, mesh: Mesh, tmp_path: Path) -> None:
    run = begin(locust, mesh, tmp_path, "-t", "60s")
    sender = eventually(lambda: senders(run.pid), seconds=60, what="the sending process")
    os.kill(sender[0], signal.SIGKILL)
    _, said = end(run)
    assert run.returncode == 1
    assert "the sending process ended with -9" in said


def senders(run: int) -> list[int]:
    """The sending processes of a run."""
    return [each.pid for each in psutil.Process(run).children() if "loadtest.locust.child" in each.cmdline()]
