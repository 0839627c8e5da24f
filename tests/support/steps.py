"""A step sink for tests of engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.worker.engines.port import StepOutput


class Steps:
    """Collects steps, refuses a second end of a sequence, and lets a test wait."""

    def __init__(self) -> None:
        self.outputs: list[StepOutput] = []
        self.tokens: dict[int, list[int]] = {}
        self.finish: dict[int, int] = {}
        self.errors: dict[int, str] = {}
        self._changed = asyncio.Event()

    def __call__(self, output: StepOutput) -> None:
        self.outputs.append(output)
        for handle, tokens, finish in zip(output.handles, output.tokens, output.finish, strict=True):
            assert handle not in self.finish, f"{handle} appears after its end"
            self.tokens.setdefault(handle, []).extend(tokens)
            if finish:
                self.finish[handle] = finish
        self.errors |= output.errors
        self._changed.set()

    async def until(self, condition: Callable[[Steps], object]) -> None:
        """Wait until the condition holds, asked after each step."""
        async with asyncio.timeout(60):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()

    async def finished(self, *handles: int) -> None:
        """Wait for the ends of these sequences."""
        await self.until(lambda steps: all(handle in steps.finish for handle in handles))
