"""Metrics of edge-auth. Labels are closed sets; tenants and keys are not labels."""

from prometheus_client import Counter, Gauge

from services.edge_auth.policy.types import Refusal

_CHECKS = Counter("weir_edge_auth_checks_total", "Checks by outcome.", ["outcome"])
_VERDICTS = Counter("weir_edge_auth_verdicts_total", "Where the verdict on a credential came from.", ["source"])

ALLOWED = _CHECKS.labels("ok")
REFUSED = {refusal: _CHECKS.labels(refusal.value) for refusal in Refusal}
FROM_GOOD_CACHE = _VERDICTS.labels("good_cache")
FROM_BAD_CACHE = _VERDICTS.labels("bad_cache")
VERIFIED = _VERDICTS.labels("verified")
CACHED = Gauge("weir_edge_auth_cached_credentials", "Credentials remembered.", ["kind"])
REVISION = Gauge("weir_edge_auth_registry_revision", "Registry revision of the keys and tenants in force.")
JWKS_READS = Counter("weir_edge_auth_jwks_reads_total", "Readings of issuers' keys.", ["outcome"])
JWKS_KEYS = Gauge("weir_edge_auth_jwks_keys", "Usable keys of all issuers.")
