"""What the rollout controller asks of others, beside the store."""

from __future__ import annotations

from typing import Protocol

from weir.rollout.v1 import rollout_pb2


class ReplicaPort(Protocol):
    """Hands scores to the other replicas, so that whoever leads, now or next, has them."""

    async def relay(self, request: rollout_pb2.ReportScoresRequest, *, leader: str) -> None:
        """Returns once the leader (an instance; empty: none, or this one) has taken them, and every other replica has
        been asked once.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when the leader did not take them; sending them again counts nothing
            twice.
        """
