"""Names of workloads: SPIFFE ids and DNS names."""

TRUST_DOMAIN = "weir.internal"

EDGE = "edge"
"""The certificate that the public listener shows: a server certificate for localhost without a workload identity."""

SERVICES = (
    "envoy",
    "etcd",
    "controlplane",
    "registry",
    "edge-auth",
    "ratelimit",
    "router",
    "admission",
    "safety",
    "audit",
    "gateway",
    "worker",
    "collector",
    "rollout",
    "predictor",
    "cli",
    "demo-client",
)
"""Every workload that has an identity in the development mesh."""


def spiffe_id(service: str) -> str:
    """The SPIFFE id of a service, the only URI in its certificate (X.509-SVID, section 2)."""
    return f"spiffe://{TRUST_DOMAIN}/sa/{service}"


def dns_name(service: str) -> str:
    """The DNS name under which a service's certificate is verified inside the mesh."""
    return f"{service}.{TRUST_DOMAIN}"
