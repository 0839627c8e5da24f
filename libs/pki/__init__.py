"""Development PKI: one CA and one leaf certificate per process and person, with SPIFFE ids (libs.authority.identity).

In production the same files come from a workload identity system (SPIRE, cert-manager); nothing else changes, because
services only ever read three paths: CA bundle, certificate, key.
"""

from libs.pki.authority import (
    EDGE,
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

__all__ = [
    "EDGE",
    "CertificateFiles",
    "adopt_next_ca",
    "distrust_former_ca",
    "ensure_ca",
    "holder",
    "holders",
    "issue",
    "issue_all",
    "reissue",
    "sign_request",
    "trust_next_ca",
]
