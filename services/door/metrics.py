"""Metrics of the door."""

from prometheus_client import Counter

REFUSED = Counter("weir_door_refused", "Calls refused, by the caller's service (empty: none of the mesh).", ["service"])
