"""Started engines, one by one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

# Tests import the helper modules beside them; pytest's importlib mode puts no test folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

import engine_cases
from engine_cases import Driver

SLOW_TO_START = {"vllm", "tensorrt_llm-real"}
"""Engines whose start takes half a minute; the tests of a module share one, each with a driver of its own."""


class _Shared:
    """A started engine whose steps go to the present test's driver."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.driver: Driver | None = None

    def sink(self, output: Any) -> None:
        if self.driver is not None:
            self.driver.sink(output)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, _Shared]]:
    """The shared engines that have been started."""
    engines: dict[str, _Shared] = {}
    yield engines
    for each in engines.values():
        await each.engine.stop()


@pytest_asyncio.fixture(params=engine_cases.names(), loop_scope="module")
async def driver(request, shared, tmp_path) -> AsyncIterator[Driver]:
    """A driver around a started engine with nothing to do."""
    name = request.param
    if name not in SLOW_TO_START:
        async for each in _own(name, tmp_path):
            yield each
        return
    if name not in shared:
        fresh = _Shared(engine_cases.make(name, tmp_path))
        with quiet():
            await fresh.engine.start(fresh.sink)
        shared[name] = fresh
    engine = shared[name].engine
    driver = shared[name].driver = Driver(name, engine)
    with quiet():
        yield driver
        engine.cancel([handle for handle in driver.tokens if handle not in driver.finish])
    assert driver.broken == []


@pytest_asyncio.fixture(params=engine_cases.names(), loop_scope="module")
async def own_driver(request, tmp_path) -> AsyncIterator[Driver]:
    """A driver around an engine that the test may stop."""
    with quiet():
        async for each in _own(request.param, tmp_path):
            yield each


async def _own(name: str, folder: Path) -> AsyncIterator[Driver]:
    engine = engine_cases.make(name, folder)
    driver = Driver(name, engine)
    await engine.start(driver.sink)
    yield driver
    await engine.stop()
    assert driver.broken == []


def quiet() -> warnings.catch_warnings:
    """Lets an optional engine's library warn of its own dependencies; elsewhere in the tests warnings are errors."""
    return warnings.catch_warnings(action="default")
