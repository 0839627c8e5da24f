"""The one way to change what the mesh is told to do: plan against exactly the state that is changed, write once.

The registry service and the rollout controller write through `Writer`, so that neither can break a rule of the other.
"""

from libs.changes.change import MAX_WRITES, Change, M, Plan, Write, nothing, put
from libs.changes.history import recorded, resource_of
from libs.changes.writer import Committed, Writer

__all__ = [
    "MAX_WRITES",
    "Change",
    "Committed",
    "M",
    "Plan",
    "Write",
    "Writer",
    "nothing",
    "put",
    "recorded",
    "resource_of",
]
