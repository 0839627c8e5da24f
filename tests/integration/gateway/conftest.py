"""A gateway among scripted leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.leaves import Rig, rig
from tests.support.tokenizer import write_byte_tokenizer


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Rig]:
    """It gives safety half a second to come back. Whatever a test did, nothing of it may stay behind."""
    model = tmp_path / "model"
    model.mkdir()
    async with rig(write_byte_tokenizer(model), tmp_path / "state", filter_grace=0.5) as running:
        yield running
        async with asyncio.timeout(10):
            while running.leftovers():  # noqa: ASYNC110 - several services' work, with no one event
                await asyncio.sleep(0.01)
