"""Development PKI: one CA and one leaf certificate per workload, with SPIFFE ids.

In production the same files come from a workload identity system (SPIRE, cert-manager); nothing else changes, because
services only ever read three paths: CA bundle, certificate, key.
"""

from libs.pki.authority import CertificateFiles, ensure_ca, issue, issue_all
from libs.pki.names import EDGE, SERVICES, TRUST_DOMAIN, dns_name, spiffe_id

__all__ = [
    "EDGE",
    "SERVICES",
    "TRUST_DOMAIN",
    "CertificateFiles",
    "dns_name",
    "ensure_ca",
    "issue",
    "issue_all",
    "spiffe_id",
]
