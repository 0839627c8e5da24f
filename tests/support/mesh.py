"""A whole mesh for end-to-end tests: started by the newcomer's command, in a folder and on ports of its own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from libs.config import TlsFiles
from services.cli.mesh import lifecycle

ROOT = Path(__file__).resolve().parents[2]
WEIR = Path(sys.prefix) / "bin" / "weir"
STREAMS_ONLY = ("replicas.predictor=0",)
"""Settings of a mesh whose test is about streams: predictors would try their models out meanwhile."""
PORTS = 200  # how many ports above its base a mesh may use
T = TypeVar("T")


@contextlib.contextmanager
def free_ports() -> Iterator[int]:
    """A base above which nothing listens at this moment, and which no other test takes meanwhile."""
    for base in range(21000, 60000, PORTS):
        with (Path(tempfile.gettempdir()) / f"weir-test-ports-{base}").open("w") as claim:
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if all(_free(base + offset) for offset in range(PORTS)):
                yield base
                return
    raise RuntimeError("no free range of ports")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def eventually(condition: Callable[[], T], *, seconds: float = 30.0, what: str = "the condition") -> T:
    """The first true value of `condition`, asked about every 50 ms: for states of other processes, which cannot be
    awaited. A WeirError, connection error or failed assertion counts as not yet. It has `seconds`, and at least 120."""
    seconds = max(seconds, 120.0)
    deadline = time.monotonic() + seconds
    last: BaseException | None = None
    while time.monotonic() < deadline:
        try:
            value = condition()
            if value:
                return value
        except (OSError, AssertionError) as error:
            last = error
        time.sleep(0.05)
    raise TimeoutError(f"{what} did not come true in {seconds} s") from last


class Mesh:
    """A running mesh."""

    def __init__(
        self,
        state: Path,
        *,
        profile: str = "demo",
        settings: tuple[str, ...] = (),
        seconds: float = 600,
        root: Path = ROOT,
    ) -> None:
        """`seconds` bounds `weir up`; `root` is the checkout whose code runs."""
        self.state = state
        self._root = root
        self._seconds = seconds
        self._claim = contextlib.ExitStack()
        self.base = self._claim.enter_context(free_ports())
        self._arguments = ["--profile", profile, *[part for s in settings for part in ("--set", s)]]

    def __enter__(self) -> Mesh:
        try:
            done = self.up()
        except BaseException:  # a signal to a bench, for one: what has started by then is stopped
            self.__exit__()
            raise
        if done.returncode != 0:
            self._claim.close()
            raise RuntimeError(f"weir up failed:\n{done.stdout}\n{done.stderr}")
        self.up_output = done.stdout
        self.env = self._environment()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._claim:
            self.weir("down", check=False, seconds=300)

    def up(self) -> subprocess.CompletedProcess[str]:
        """`weir up`, also of a mesh that is up."""
        return self.weir("up", *self._arguments, check=False, seconds=self._seconds)

    @property
    def environ(self) -> dict[str, str]:
        """For commands that talk to this mesh."""
        found = {**os.environ, "WEIR_STATE_DIR": str(self.state), "WEIR_PORT_BASE": str(self.base)}
        if self._root != ROOT:
            found["PYTHONPATH"] = os.pathsep.join((str(self._root / "protos" / "gen"), str(self._root)))
        return found

    def weir(self, *arguments: str, check: bool = True, seconds: float = 180) -> subprocess.CompletedProcess[str]:
        """Run the operator's command."""
        done = subprocess.run(
            [str(WEIR), *arguments],
            env=self.environ,
            cwd=self._root,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        if check and done.returncode:
            raise RuntimeError(f"weir {' '.join(arguments)} failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
        return done

    def weir_json(self, *arguments: str) -> Any:
        """Run it and parse its answer."""
        return json.loads(self.weir(*arguments, "--json").stdout)

    def file(self) -> Mapping[str, Any]:
        """mesh.json."""
        return json.loads((self.state / "mesh.json").read_text())

    def operator(self) -> TlsFiles:
        """The certificate of the operator's command."""
        tls = self.file()["tls"]
        return TlsFiles(ca=tls["ca"], cert=tls["cert"], key=tls["key"])

    def etcd_root(self) -> TlsFiles:
        """The certificate that may everything in etcd."""
        secrets = self.state / "secrets"
        return TlsFiles(ca=self.file()["tls"]["ca"], cert=str(secrets / "root.pem"), key=str(secrets / "root.key"))

    def process(self, name: str) -> Mapping[str, Any]:
        """The one of this name, as its supervisor says."""
        return next(row for row in self.status() if row["name"] == name)

    def status(self) -> list[dict[str, Any]]:
        """Every process, as its supervisor says: it is asked often, and `weir status`, which asks it too, takes half a
        second of a core each time."""
        found = lifecycle.status(self.state)
        rows: list[dict[str, Any]] = found["processes"] if found else []
        return rows

    def kill(self, name: str) -> int:
        """SIGKILL one process, by the pid that the supervisor knows; returns that pid."""
        pid = int(self.process(name)["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_back(self, name: str, old_pid: int) -> None:
        """Until the supervisor has the process up and ready again."""

        def back() -> bool:
            row = self.process(name)
            return row["state"] == "ready" and row["pid"] not in (None, old_pid)

        eventually(back, seconds=60, what=f"{name} being back")

    def _environment(self) -> dict[str, str]:
        lines = (self.state / "env").read_text().splitlines()
        pairs = (shlex.split(line.removeprefix("export "))[0].split("=", 1) for line in lines if "=" in line)
        return dict(pairs)
