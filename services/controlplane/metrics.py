"""Metrics of the control plane; labels are node clusters ("edge", "mesh"), resource types and routes: closed sets."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

SNAPSHOTS = Counter("weir_controlplane_snapshots_total", "Snapshots by outcome", ["outcome"])
REVISION = Gauge("weir_controlplane_snapshot_revision", "etcd revision of the snapshot that is served")
BAD_ENDPOINTS = Gauge("weir_controlplane_bad_endpoints", "Registered endpoints whose address cannot be read")
BUILD = Histogram(
    "weir_controlplane_build_seconds",
    "From a registry change to the encoded snapshot",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25),
)
LOST = Counter("weir_edge_lost_total", "Requests that the edge lost or refused by itself", ["route"])
STREAMS = Gauge("weir_controlplane_streams", "Open ADS streams", ["cluster"])
RESPONSES = Counter("weir_controlplane_responses_total", "ADS responses sent", ["type"])
ACKS = Counter("weir_controlplane_acks_total", "ADS responses accepted", ["type"])
NACKS = Counter("weir_controlplane_nacks_total", "ADS responses refused", ["type"])
ACK_SECONDS = Histogram(
    "weir_controlplane_ack_seconds",
    "From sending a response to the client's answer",
    ["cluster"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0),
)
