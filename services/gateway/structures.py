"""Checks schemas, regular expressions and grammars of structured output before they cost a grant."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict

from libs.structured_output import MAX_BYTES, StructureError, check
from services.gateway.policy.parameters import invalid
from services.gateway.policy.spec import Structure

_REMEMBERED = 1024


class StructureChecks:
    """Compiles each structure once, in a thread, and remembers the verdict: callers send the same few over and over.
    What a compilation costs at most is said in `libs/structured_output/grammar.py`."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()

    async def check(self, structure: Structure) -> None:
        """Refuse what no engine could follow.

        :raises WeirError: INVALID_REQUEST naming the caller's field.
        """
        if len(structure.text) > MAX_BYTES:
            raise invalid(structure.field, f"at most {MAX_BYTES} bytes")
        key = hashlib.sha256(f"{structure.kind}:{structure.text}".encode("utf-8", "surrogatepass")).digest()
        verdict = self._verdicts.pop(key, None)
        if verdict is None:
            verdict = await asyncio.to_thread(_verdict, structure)
        self._verdicts[key] = verdict
        if len(self._verdicts) > _REMEMBERED:
            self._verdicts.popitem(last=False)
        if verdict:
            raise invalid(structure.field, verdict)


def _verdict(structure: Structure) -> str:
    """What is wrong with it, "" if nothing is."""
    try:
        check(structure.kind, structure.text)
    except StructureError as error:
        return str(error)
    return ""
