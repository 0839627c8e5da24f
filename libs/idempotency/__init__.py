"""What idempotency keys stand for: a request each, its tenant's, and the answer that it got (docs/adr/0033).

`keyed` is what one process knows, `kept` what others find after it died, `calls` whole answers under both. Used by
gateways and by predictors.
"""

from libs.idempotency.calls import KeyedCalls, conflicts_counted
from libs.idempotency.kept import KeptAnswers
from libs.idempotency.keyed import MOST_OF_TENANT, MOST_RUNNING, Entry, Keyed, conflict, replayed

__all__ = [
    "MOST_OF_TENANT",
    "MOST_RUNNING",
    "Entry",
    "KeptAnswers",
    "Keyed",
    "KeyedCalls",
    "conflict",
    "conflicts_counted",
    "replayed",
]
