"""A real PostgreSQL server, Debian's, on a Unix socket of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.mesh import ROOT

_NUMBERS = itertools.count(1)


@cache
def programs() -> Path:
    """The folder of its programs; the test is skipped where they cannot be had."""
    found = subprocess.run([ROOT / "bin" / "postgres"], capture_output=True, text=True, timeout=600)
    if found.returncode:
        pytest.skip(f"no postgres: {found.stderr.strip().splitlines()[-1]}")
    return Path(found.stdout.strip())


class Server:
    """One that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # It refuses to run as root.
        self._as: dict[str, Any] = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid} if not os.getuid() else {}
        if self._as:
            shutil.chown(folder, "nobody")
        self._run("initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-N", "--locale=C", "-E", "UTF8")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Until it answers."""
        options = ("-F", "-k", self._folder, "-c", "listen_addresses=", "-c", "max_connections=50")
        self._process = subprocess.Popen(
            [programs() / "postgres", "-D", self._folder / "data", *options],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._as,
        )
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, "it ended"

    def stop(self) -> None:
        """As if its machine were gone: connections break at once."""
        if self._process is not None:
            self._process.send_signal(3)  # immediate shutdown
            self._process.wait(60)
            self._process = None

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """Of its own accord committing."""
        return psycopg.connect(host=str(self._folder), user="postgres", dbname=database, autocommit=True)

    def database(self) -> str:
        """A new one's URL."""
        name = f"records{next(_NUMBERS)}"
        with self.connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return f"postgresql+psycopg://postgres@/{name}?host={self._folder}"

    def _run(self, program: str, *words: object) -> None:
        argv = [programs() / program, *map(str, words)]
        subprocess.run(argv, check=True, capture_output=True, cwd=self._folder, timeout=120, **self._as)


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """One, in a folder whose name is short enough for a socket, until the block ends."""
    programs()
    folder = Path(tempfile.mkdtemp(prefix="weir-pg-"))
    made = None
    try:
        made = Server(folder)
        yield made
    finally:
        if made is not None:
            made.stop()
        shutil.rmtree(folder)
