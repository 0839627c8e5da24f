"""Runs Python that somebody else wrote where it can do nothing but compute.

    box = Box(source, seconds=1.0, memory=256 << 20)
    outputs = box.run({"text": array})  # the source's run(inputs)
    box.close()

A process of its own: no file, no network, no other process, no environment, nothing of the parent's memory, bounded
memory, killed when a call takes too long. `fences.py` says what stands around it, `child.py` what it may import.
"""

from libs.sandbox.box import Box, RunError, SourceError, UnsafeError
from libs.sandbox.fences import Fences, available

__all__ = ["Box", "Fences", "RunError", "SourceError", "UnsafeError", "available"]
