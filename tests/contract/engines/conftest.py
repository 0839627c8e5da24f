"""Started engines, one by one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Tests import the helper modules beside them; pytest's importlib mode puts no test folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

import engine_cases

NAMES = ["simulated", "simulated-costed", "simulated-paced", "tensorrt_llm", "torch"]


@pytest.fixture(params=NAMES)
async def driver(request, tmp_path):
    """A driver around a started engine."""
    engine = engine_cases.make(request.param, tmp_path)
    driver = engine_cases.Driver(engine)
    await engine.start(driver.sink)
    yield driver
    await engine.stop()
    assert driver.broken == []
