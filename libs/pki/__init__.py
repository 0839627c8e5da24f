"""Development PKI: one CA and one leaf certificate per process and person, with SPIFFE ids (libs.authority.identity).

In production the same files come from a workload identity system (SPIRE, cert-manager); nothing else changes, because
services only ever read three paths: CA bundle, certificate, key.
"""

from libs.pki.authority import (
    CertificateFiles,
    adopt_next_ca,
    distrust_former_ca,
    ensure_ca,
    holder,
    holders,
    issue,
    issue_all,
    reissue,
    sign_request,
    trust_next_ca,
)
from libs.pki.names import EDGE, LOOPBACK, dns_names

__all__ = [
    "EDGE",
    "LOOPBACK",
    "CertificateFiles",
    "adopt_next_ca",
    "distrust_former_ca",
    "dns_names",
    "ensure_ca",
    "holder",
    "holders",
    "issue",
    "issue_all",
    "reissue",
    "sign_request",
    "trust_next_ca",
]
