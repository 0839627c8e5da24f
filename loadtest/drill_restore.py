"""etcd's data and the audit log destroyed at a blow, and restored: `make drill-restore`.

Starts a mesh (profile simulated) with a tenant, its key, an operator and a rollout that no seed brings back. While
requests and changes of the registry go on, `weir backup` runs every few seconds. Then, when the next one is due, every
process is killed and the data of etcd and of the audit service are deleted; `weir restore` and `weir up` follow. Lost
is what was acknowledged and is not there afterwards:

- `rpo_registry_s`, `rpo_audit_s`: the age, at the blow, of the newest change and of the newest record that survived. It
  is what lies between two backups (`interval_s`) and what they take; who takes them every hour loses an hour.
- `rto_s`: from the blow until a completion with the tenant's key through the edge; `restore_s` of it: `weir restore`.

Then the audit log alone is lost and put back, while the mesh runs: etcd knows of later records, so the log takes none
until an owner accepts that they are gone.

What was kept elsewhere, as docs/deploy.md asks for, is put back: the audit log's keys. Certificates,
pepper and model files are not touched. Ends with what was expected and one line of JSON; exit code 1 when something did
not hold. `--quick` is shorter.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from libs.auditlog.layout import lines_of, segments
from libs.errors import WeirError
from loadtest.overload import output
from loadtest.overload.output import say
from loadtest.overload.timeline import Check, verdict
from loadtest.rollout.site import make_version
from services.cli import edge
from tests.support.mesh import STREAMS_ONLY, Mesh, eventually

TARGETS = {"rto_s": "≤ 60", "rpo_beyond_interval_s": "≤ 5"}
TENANT = "restored"
MODEL = "weir-fast"
ROUNDS, INTERVAL = 3, 10.0
QUICK_ROUNDS, QUICK_INTERVAL = 2, 3.0
ANSWERED_SECONDS = 120.0
SECRETS = ("keys", "kek")
"""Folders of the audit log that no backup holds: what signs it, and what wraps the keys of its payloads."""
DIRECT = ("registry", "controlplane", "rollout", "door")
"""Processes with users of their own in etcd."""


class Drill:
    """One mesh, and what it acknowledged."""

    def __init__(self, folder: Path, mesh: Mesh) -> None:
        self._folder, self._mesh = folder, mesh
        self._audit = mesh.state / "data" / "audit"
        self._stop = threading.Event()
        self.store = folder / "backups"
        self.key = ""
        self.changes: list[tuple[float, int]] = []
        """When each change of the limit was acknowledged, Unix seconds, and its value."""
        self.answers: list[tuple[float, str]] = []
        """When each completion ended, and its request's id."""

    def prepare(self) -> None:
        """What no seed brings back: a tenant with a key, an operator, a rollout under way; and the key of the audit log
        where it is safe."""
        weir = self._mesh.weir
        weir("set", "tenants", TENANT, "plan=paid", "--create", "--reason", "the drill")
        self.key = str(weir("keys", "create", TENANT).stdout.strip())
        weir("operators", "add", "jane", "--role", "viewer", "--reason", "the drill")
        make_version(self._folder / "version", {})
        push = ("models", "push", str(self._folder / "version"), "--name", MODEL, "--version", "7")
        weir(*push, "--pool", "demo", "--tier", "fast")
        steps = ("--steps", "10,50", "--step-duration", "1h", "--reason", "the drill")
        weir("rollout", "start", MODEL, "7", *steps)
        eventually(lambda: self.rollout()[0] == "ROLLOUT_PHASE_CANARY", seconds=60, what="the rollout")
        eventually(self.answered, seconds=60, what="an answer to the new tenant")
        for name in SECRETS:
            shutil.copytree(self._audit / name, self._folder / "elsewhere" / name)

    def answered(self) -> bool:
        """One completion with the tenant's key, noted."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Where is the weir?"}], "max_tokens": 4}
        url, ca = self._mesh.env["WEIR_EDGE_TLS_URL"], self._mesh.env["WEIR_CA"]
        try:
            done = edge.chat(url, ca=ca, key=self.key, body=body, timeout=20.0, show=lambda _: None)
        except WeirError:
            return False
        self.answers.append((time.time(), done["request_id"]))
        return True

    @contextlib.contextmanager
    def traffic(self) -> Iterator[None]:
        """Requests and changes, one after another each, while the block runs."""
        threads = [threading.Thread(target=each) for each in (self._ask, self._ask, self._change)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(60)

    def _ask(self) -> None:
        while not self._stop.is_set():
            self.answered()

    def _change(self) -> None:
        for value in itertools.count(1001):
            if self._stop.is_set():
                return
            words = (
                "set",
                "limits",
                f"{TENANT}/*",
                f"requests_per_minute={value}",
                "--create",
                "--reason",
                "the drill",
            )
            if self._mesh.weir(*words, check=False).returncode == 0:
                self.changes.append((time.time(), value))

    def backup(self) -> dict[str, Any]:
        """Takes one, and says what it holds and how long it took."""
        started = time.time()
        told = self._mesh.weir_json("backup", str(self.store))
        return {**told, "began": started, "seconds": time.time() - started}

    def pids(self) -> list[int]:
        """Of the supervisor and of every process."""
        status = self._mesh.weir_json("status")
        return [int(status["pid"]), *(int(each["pid"]) for each in status["processes"] if each["pid"])]

    def blow(self, pids: list[int]) -> float:
        """Every process at once, and the data of etcd and of the audit service; returns when."""
        processes = [psutil.Process(pid) for pid in pids]
        at = time.time()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        psutil.wait_procs(processes, timeout=30)
        shutil.rmtree(self._mesh.state / "data" / "etcd")
        shutil.rmtree(self._audit)
        return at

    def restore(self) -> tuple[float, list[bytes]]:
        """What a person does; how long `weir restore` took, and the lines of the log that it put back."""
        shutil.copytree(self._folder / "elsewhere", self._audit)
        started = time.time()
        self._mesh.weir("restore", str(self.store), seconds=120)
        took = time.time() - started
        return took, [line for _, path in segments(self._audit / "log") for line in lines_of(path)[0]]

    def lose_the_log(self) -> list[Check]:
        """The log alone is lost and restored: what `weir audit verify` says of it, and what follows upon `accept`."""
        weir = self._mesh.weir
        eventually(self.answered, seconds=60, what="an answer")
        eventually(lambda: self._is_kept(self.answers[-1][1]), seconds=60, what="its record")
        # It anchors its last record as it ends.
        before = int(self._mesh.process("audit")["pid"])
        weir("restart", "audit")
        self._mesh.wait_back("audit", before)
        # Halted: a process that comes back to an empty folder would begin a log of its own.
        pid = int(self._mesh.process("audit")["pid"])
        os.kill(pid, signal.SIGSTOP)
        for name in ("log", "checkpoints"):
            shutil.rmtree(self._audit / name)
        weir("restore", str(self.store), "--audit", str(self._audit), seconds=120)
        os.kill(pid, signal.SIGKILL)
        found = eventually(self._contradicted, seconds=60, what="a log that its anchors contradict")
        eventually(self.answered, seconds=60, what="an answer meanwhile")
        held_back = self.answers[-1][1]
        refused = not self._is_kept(held_back)
        accepted = weir("audit", "accept", "--reason", "the drill").stdout
        eventually(lambda: self._is_kept(held_back), seconds=60, what="the record that a writer kept meanwhile")
        return [
            Check("a log that is older than its anchor takes no records", found[0], refused),
            Check("an owner accepts that they are gone", accepted.splitlines()[-1], "are missing" in accepted),
            Check("and it verifies", "", bool(self._mesh.weir_json("audit", "verify")["ok"])),
        ]

    def _is_kept(self, request: str) -> bool:
        """Whether the audit log on the disk has a record of a request."""
        return any(request.encode() in path.read_bytes() for _, path in segments(self._audit / "log"))

    def _contradicted(self) -> list[str]:
        """The faults that `weir audit verify` names."""
        done = self._mesh.weir("audit", "verify", "--json", check=False)
        return list(json.loads(done.stdout)["faults"]) if done.stdout else []

    def rollout(self) -> tuple[str, int, str]:
        """Phase, step and id of the rollout."""
        found = self._mesh.weir_json("get", "rollouts", MODEL)
        state = found["status"]
        return str(state["phase"]), int(state.get("step", 0)), str(found["spec"]["id"])

    def limit(self) -> int:
        """The value that the registry has."""
        return int(self._mesh.weir_json("get", "limits", f"{TENANT}/*")["spec"]["requests_per_minute"])

    def rights(self) -> str:
        """What etcd's users and roles lack, by the command that gives them."""
        services = self._mesh.file()["services"]
        root = self._mesh.etcd_root()
        processes = [f"{each['service']}/{name}" for name, each in services.items() if each["service"] in DIRECT]
        files = ("--ca", root.ca, "--cert", root.cert, "--key", root.key)
        address = services["etcd"]["address"]
        words = ("authority", "establish", *processes, "--etcd", address, *files, "--add", "--dry-run")
        return self._mesh.weir(*words).stdout.strip()


def run(folder: Path, *, rounds: int, interval: float) -> tuple[dict[str, float], list[Check]]:
    """The drill: figures, and what was expected."""
    with Mesh(folder / "mesh", profile="simulated", settings=STREAMS_ONLY) as mesh:
        drill = Drill(folder, mesh)
        drill.prepare()
        say(f"a backup every {interval:g} s, requests and changes meanwhile")
        backups = []
        with drill.traffic():
            due = time.time()
            for _ in range(rounds):
                time.sleep(max(0.0, due - time.time()))
                backups.append(made := drill.backup())
                say(f"  backup {made['id'][:12]}…: {made['bytes'] / 1e6:.2f} MB in {made['seconds']:.1f} s")
                due = made["began"] + interval
            rollout, history = drill.rollout(), mesh.weir_json("history", "rollouts", MODEL)["entries"]
            pids = drill.pids()
            time.sleep(max(0.0, due - time.time()))
            at = drill.blow(pids)
        say("  --- everything is killed; the data of etcd and of the audit log are gone")
        restore_s, lines = drill.restore()
        say(f"  --- restored in {restore_s:.1f} s: {len(lines)} audit records")
        mesh.__enter__()
        eventually(drill.answered, seconds=ANSWERED_SECONDS, what="an answer to the tenant that was restored")
        rto = drill.answers[-1][0] - at
        say(f"  --- the tenant is answered again, {rto:.1f} s after the blow")
        last = backups[-1]
        value = drill.limit()
        text = b"".join(lines).decode()
        kept = [each for each in drill.answers if each[1] in text]
        before = [each for each in drill.answers if each[0] < last["began"]]
        newest_change = max(moment for moment, each in drill.changes if each <= value)
        verified, after, rights = mesh.weir_json("audit", "verify"), drill.rollout(), drill.rights()
        lost = [each for moment, each in drill.changes if each > value and moment < at]
        acknowledged = [each for moment, each in drill.changes if moment < last["began"]]
        checks = [
            Check("changes acknowledged before the last backup are there", f"{value}", value >= max(acknowledged)),
            Check("records of answers before it are there", f"{len(before)}", all(each in kept for each in before)),
            Check("the audit log verifies", f"{verified['records']} records", bool(verified["ok"])),
            Check(
                "by the same key", verified["key_fingerprint"][:12], verified["key_fingerprint"] == last["audit_key"]
            ),
            Check("the rollout stands where it stood", " ".join(map(str, after)), after == rollout),
            Check(
                "history goes on from what it was",
                f"{len(history)} entries of the rollout",
                mesh.weir_json("history", "rollouts", MODEL)["entries"][-len(history) :] == history,
            ),
            Check("operators are who they were", "jane", "jane" in mesh.weir("operators", "list").stdout),
            Check("rights in etcd are in force", rights, rights == "all is so already"),
            Check("something was lost, or nothing was measured", f"{len(lost)} changes", bool(lost)),
        ]
        say("  --- the audit log alone is lost, and restored")
        checks += drill.lose_the_log()
    in_between = [each for each in drill.answers if each[0] < at]
    rpo_registry, rpo_audit = at - newest_change, at - max(moment for moment, _ in kept if moment < at)
    figures = {
        "interval_s": interval,
        "rpo_registry_s": rpo_registry,
        "rpo_audit_s": rpo_audit,
        "rpo_beyond_interval_s": max(rpo_registry, rpo_audit) - interval,
        "lost_changes": len(lost),
        "lost_records": len([each for each in in_between if each not in kept]),
        "changes": len([moment for moment, _ in drill.changes if moment < at]),
        "answers": len(in_between),
        "rto_s": rto,
        "restore_s": restore_s,
        "backup_s": statistics.median(each["seconds"] for each in backups),
        "backup_mb": last["bytes"] / 1e6,
        "audit_bytes_per_record": sum(map(len, lines)) / len(lines),
        "store_mb": sum(path.stat().st_size for path in drill.store.rglob("*") if path.is_file()) / 1e6,
    }
    return {name: round(value, 2) for name, value in figures.items()}, checks


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer backups in a shorter time")
    quick = parser.parse_args().quick
    rounds, interval = (QUICK_ROUNDS, QUICK_INTERVAL) if quick else (ROUNDS, INTERVAL)
    output.begin()
    parts = output.Parts()
    with parts.part("restore"), tempfile.TemporaryDirectory(prefix="weir-drill-") as folder:
        figures, checks = run(Path(folder), rounds=rounds, interval=interval)
        parts.figures |= figures
        parts.failed |= {each.what: f"did not hold: {each.found}" for each in checks if not each.held}
        say(verdict(checks)[0])
        for name, value in figures.items():
            say(f"  {name:24} {value}")
    output.finish("restore", parts, TARGETS)


if __name__ == "__main__":
    main()
