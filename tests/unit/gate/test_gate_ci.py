"""What a person or a pipeline types: .ci/run and `make help`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAKEFILE = """
setup check:
	@echo "did $@"; exit $($@)
"""


@pytest.mark.parametrize(
    ("check", "tests", "last", "code"),
    [
        (0, 0, ["The gate is green."], 0),
        (1, 0, ["The gate is RED: make check"], 1),
        (0, 1, ["The gate is RED: bin/test --ci (the table above)"], 1),
        (1, 1, ["The gate is RED: make check", "The gate is RED: bin/test --ci (the table above)"], 1),
    ],
)
def test_the_gate_runs_its_tests_whatever_its_checks_say(tmp_path, check, tests, last, code):
    for name, text in {"Makefile": MAKEFILE, "bin/test": f"#!/bin/sh\necho did $0 $*\nexit {tests}\n"}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    (tmp_path / ".ci").mkdir()
    run = shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    done = subprocess.run(
        [run], env={"PATH": os.environ["PATH"], "setup": "0", "check": str(check)}, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("did")] == ["did setup", "did check", "did bin/test --ci"]
    assert lines[-len(last) :] == last
    assert done.returncode == code


def test_make_help_lists_every_target_and_says_what_it_does():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^\.PHONY: (\S+)$", makefile, re.MULTILINE)
    make = str(shutil.which("make"))
    said = subprocess.run([make, "-s", "help"], cwd=ROOT, check=True, capture_output=True, text=True)
    lines = said.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("  make ")] == targets
    assert all(len(line.split()) > 2 for line in lines if line.startswith("  make "))
    headings = re.findall(r"^# --- (.*) ---$", makefile, re.MULTILINE)
    assert [line for line in lines if line and not line.startswith("  make ")] == headings
    assert "test-k8s" in targets
