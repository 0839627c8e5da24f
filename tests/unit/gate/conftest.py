"""The gate's program on a made-up checkout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Without the plug-ins that these tests do not use: they take most of the time to start.
SETTINGS = """
[pytest]
addopts = -p no:hypothesispytest -p no:asyncio -p no:anyio -p no:typeguard -p no:cacheprovider
"""


class Checkout:
    """A folder with tests, and the gate to run on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("pytest.ini", SETTINGS)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Begins `bin/test` here; it says everything on stdout."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "WEIR_"))}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.gate", "--workers", "2", *arguments],
            cwd=self.folder,
            env=outside | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> Run:
        process = self.start(*arguments)
        try:
            output, _ = process.communicate()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()
        return Run(process.returncode, output)


class Run:
    """What a call of the gate came to."""

    def __init__(self, code: int, output: str) -> None:
        self.code = code
        self.output = output

    @property
    def last(self) -> str:
        return self.output.splitlines()[-1]

    def row(self, group: str) -> list[int]:
        """A group's passed, failed, passed only alone and skipped."""
        [row] = [line.split() for line in self.output.splitlines() if line.startswith(f"{group} ")]
        return [int(number) for number in row[1:5]]

    def names(self, title: str) -> list[str]:
        """What is listed below a title of the end."""
        lines = self.output.splitlines()
        [start] = [number for number, line in enumerate(lines) if line.startswith(title)]
        below = lines[start + 1 :]
        listed = below[: below.index("")]
        return [line.removeprefix("  ") for line in listed if line.startswith("  ")]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Checkout]:
    """Makes a checkout for a module's tests."""
    return lambda: Checkout(tmp_path_factory.mktemp("checkout"))
