"""What comes out of deciding."""

from __future__ import annotations

from dataclasses import dataclass

from services.rollout.policy.phases import Kind
from services.rollout.policy.plan import GateStatus, State


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. To be written, as one fenced transaction, whenever `kind` is not WAIT."""

    kind: Kind
    text: str
    """In words, with its numbers."""
    state: State
    """What shall be stored; of WAIT, the state that was given."""
    gates: tuple[GateStatus, ...] = ()
    """What each gate said of each arm when this was decided."""

    @property
    def changes(self) -> bool:
        """There is something to write."""
        return self.kind is not Kind.WAIT
