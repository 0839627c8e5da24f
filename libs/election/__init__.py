"""Who of several replicas decides: leader election over the registry's store, with a guard for every write.

    election = Election(store=store, service="rollout", instance="rollout-0")
    await election.run(lead)        # `lead(leadership)` runs for as long as this replica leads

A lease says who leads; the guard makes it safe. Clocks, pauses and partitions can make a replica believe for a moment
that it leads when it does not; a transaction that carries `leadership.guard` then writes nothing. See README.md.
"""

from libs.election.election import Election
from libs.election.leadership import Leadership

__all__ = ["Election", "Leadership"]
