"""Who runs which tests, also when a process dies.

xdist's own scheduling by scope (3.8) then runs the test that killed a process again and again, until it starts no more
processes and leaves the rest unrun; or it never ends: a new process that is given no test, or only one, waits for
another before it begins, and nothing gives it one. One that is given work before it has collected is an internal error.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController


class EnduringScheduling(LoadScopeScheduling):
    """Runs each test once, whatever processes die."""

    def remove_node(self, node: WorkerController) -> str | None:
        """The test in which the process died has had its turn; what is done with is not handed on."""
        work = self.assigned_work[node]
        died = next((test for unit in work.values() for test, done in unit.items() if not done), None)
        for scope, unit in list(work.items()):
            if died in unit:
                unit[died] = True
            if all(unit.values()):
                del work[scope]
        super().remove_node(node)
        return died

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """A process that came later and found other tests is of no use."""
        super().add_node_collection(node, collection)
        if node not in self.registered_collections:
            node.shutdown()

    def schedule(self) -> None:
        """A process that came later gets two units of work, or one and the word that there is no more."""
        later = self.collection is not None
        super().schedule()
        for node in self.nodes if later else ():
            self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node in self.registered_collections:
            super()._reschedule(node)
