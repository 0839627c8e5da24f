"""What both faces do with a running generation."""

from __future__ import annotations

from services.gateway.generation import Generation
from services.gateway.policy.events import ChoiceUpdate, End, Finish


async def collect(generation: Generation) -> tuple[list[ChoiceUpdate], End]:
    """Read a generation to its end; every choice as one update, by index. Cancelling this stops the generation."""
    whole = [ChoiceUpdate(choice.index) for choice in generation.choices]
    try:
        while True:
            updates, _, end = await generation.take()
            for update in updates:
                choice = whole[update.index]
                choice.text += update.text
                choice.finish = update.finish
                if update.logprobs is not None:
                    choice.logprobs = choice.logprobs or []
                    choice.logprobs += update.logprobs
            if end is not None:
                return whole, end
    finally:
        generation.stop(Finish.CANCELLED)
