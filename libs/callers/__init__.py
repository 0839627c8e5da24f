"""Who calls a service of the data plane: trusted headers from Envoy, or the certificate of an internal workload."""

from libs.callers.callers import Caller, Identifier, Identity, bounded

__all__ = ["Caller", "Identifier", "Identity", "bounded"]
