"""What was used, and what it cost: a fold over the records of requests, and the log's comparison with others' books.
Pure.

`totals` says by how much records change the sums, by hour, tenant, key, user, model, version, class and operation;
`reconcile` names every difference between the log, the limiter's ledger and what was delivered.
"""

from libs.usage.records import Used, read
from libs.usage.totals import Counts, Fold, Key, Unsettled

__all__ = ["Counts", "Fold", "Key", "Unsettled", "Used", "read"]
