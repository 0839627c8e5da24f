"""What idempotency keys stand for: a request each, its tenant's, and the answer that it got (docs/adr/0033).

`keyed` is what one process knows, `kept` what others find after it died. Used by gateways, for
generations, and by predictors.
"""

from libs.idempotency.kept import KeptAnswers
from libs.idempotency.keyed import MOST_OF_TENANT, MOST_RUNNING, Entry, Keyed, check_key, conflict

__all__ = ["MOST_OF_TENANT", "MOST_RUNNING", "Entry", "KeptAnswers", "Keyed", "check_key", "conflict"]
