"""A caller that leaves in the very turn of the loop in which its request is refused has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from libs.callers import Caller, Identity
from libs.clock import SystemClock
from libs.errors import Reason, WeirError
from services.gateway.openai.lists import PromptList
from services.gateway.policy.events import Finish
from services.gateway.policy.spec import Spec
from tests.support.leaves import Held, Rig

CALLER = Caller(
    identity=Identity(tenant="closed"), request_id="request", client_request_id="", traceparent="", remaining=20.0
)


def prompt(text: str) -> Spec:
    return Spec(model="tiny", operation="completion", prompt=text)


class Refusing:
    """From now on the quota refuses, and is about to."""

    def __init__(self, mesh: Rig) -> None:
        mesh.deny(WeirError(Reason.QUOTA_CONCURRENCY, "all slots are taken"))
        self._reserves = Held(mesh.quota, lambda call: call.HasField("reserve"))
        self._requests = mesh.gateway._pipeline._tasks
        self._before = set(self._requests)

    async def as_one_leaves(self, leave: Callable[[], object]) -> None:
        """Refuse the request that was begun since; `leave` is called in that turn of the loop."""
        await self._reserves.question()
        (serving,) = self._requests - self._before
        serving.add_done_callback(lambda _: leave())
        self._reserves.go.set()


async def test_its_cancellation_is_not_taken_for_the_refusal(mesh: Rig) -> None:
    refusing = Refusing(mesh)
    opening = asyncio.create_task(mesh.gateway._pipeline.open(prompt("hi"), CALLER))
    await refusing.as_one_leaves(opening.cancel)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(opening, 10)


async def test_no_more_of_a_list_is_begun_for_nobody(mesh: Rig) -> None:
    admissions = Held(mesh.admission, lambda call: call.HasField("admit"))
    prompts = PromptList(mesh.gateway._pipeline, [prompt(text) for text in "abc"], CALLER, SystemClock())
    opening = asyncio.create_task(prompts.open())
    await admissions.question()  # the first of them
    refusing = Refusing(mesh)
    admissions.go.set()
    await opening
    await refusing.as_one_leaves(lambda: prompts.stop(Finish.CANCELLED))
    async with asyncio.timeout(10):
        await asyncio.wait((prompts._task,))
    assert prompts._task.cancelled()
