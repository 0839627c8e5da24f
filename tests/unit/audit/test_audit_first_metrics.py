"""What services of the audit log say of themselves before they have looked: a process that starts is scraped."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SHOW = "import importlib, sys; from prometheus_client import generate_latest; importlib.import_module(sys.argv[1])\n"
_SHOW += "print(generate_latest().decode())"


@pytest.mark.parametrize(
    ("module", "metrics"),
    [
        ("services.audit.metrics", ("weir_audit_intact", "weir_audit_sealing")),
        ("services.records.metrics", ("weir_records_intact",)),
    ],
)
def test_a_process_that_starts_raises_no_alarm(module: str, metrics: tuple[str, ...]) -> None:
    page = subprocess.run([sys.executable, "-c", _SHOW, module], capture_output=True, text=True, check=True).stdout
    assert {f"{name} 1.0" for name in metrics} <= set(page.splitlines())
