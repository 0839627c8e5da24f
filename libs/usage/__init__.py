"""What was used, and what it cost: one fold over the audit log, and its comparison with others' books. Pure.

`totals` adds up, by day, tenant, key, user, model, version and class; `reconcile` names every difference between the
log, the limiter's ledger and what was delivered.
"""

from libs.usage.records import Used, read
from libs.usage.totals import DIMENSIONS, Counts, Totals

__all__ = ["DIMENSIONS", "Counts", "Totals", "Used", "read"]
