"""The torch engine's unit tests with whatever packages this machine has, told apart by what they lack."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "tests/unit/engine_torch"
NEEDED = ("pytest", "hypothesis", "transformers", "safetensors", "tokenizers", "peft")
"""What most of the tests need beside torch and numpy; `transformers` is what they compare with."""
_LACKS = re.compile(r"No module named '([A-Za-z0-9_]+)|structured output needs (llguidance)")


@dataclass(slots=True)
class Ran:
    """How many passed, those that failed, how many could not run for want of which package, and why none did."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    lacking: Counter[str] = field(default_factory=Counter)
    note: str = ""


def run(device: str, scratch: Path, *, only: str = "", seconds: float = 540.0) -> Ran:
    """Run them in a process of their own, whose engines see no GPU with the device `cpu`. `only`: as pytest's -k."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return Ran(note=f"the unit tests were not run: there is no {', '.join(missing)}")
    report = scratch / "units.xml"
    # Not the project's own settings: they ask for plug-ins that only its environment has.
    (scratch / "pytest.ini").write_text("[pytest]\n")
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-c", str(scratch / "pytest.ini"), "--rootdir", str(ROOT)),
        *("-p", "no:cacheprovider", "--import-mode=importlib", "--continue-on-collection-errors"),
        *(f"--junitxml={report}", "-k", only, FOLDER),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'protos/gen'}"}
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return Ran(failed=[f"the unit tests did not end within {seconds:g} s"])
    if not report.exists():
        return Ran(failed=[f"pytest ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}"])
    return read(report)


def read(report: Path) -> Ran:
    """What pytest's JUnit report says."""
    ran = Ran()
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - our own child's
        name = f"{case.get('classname')}::{case.get('name')}"
        wrong = [each for each in case if each.tag in ("failure", "error")]
        if not wrong:
            ran.passed += not any(each.tag == "skipped" for each in case)
            continue
        lacks = _LACKS.search("".join(f"{each.get('message')} {each.text}" for each in wrong))
        if lacks:
            ran.lacking[lacks.group(1) or lacks.group(2)] += 1
        else:
            ran.failed.append(name)
    return ran
