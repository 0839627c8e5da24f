"""gRPC servers and channels as the mesh uses them: mTLS, typed errors, deadlines, peer identity.

`make_server` and `make_channel` are the only places that create either. Errors cross as `google.rpc.Status` details
(libs.errors); the interceptors do the mapping, so that servicers raise `WeirError` and callers catch it.
"""

from libs.rpc.channel import make_channel
from libs.rpc.identity import peer_identity, peer_service, peer_spiffe, require_own
from libs.rpc.interceptors import ErrorInterceptor, client_interceptors
from libs.rpc.metadata import get_metadata, traceparent_of
from libs.rpc.server import make_server

__all__ = [
    "ErrorInterceptor",
    "client_interceptors",
    "get_metadata",
    "make_channel",
    "make_server",
    "peer_identity",
    "peer_service",
    "peer_spiffe",
    "require_own",
    "traceparent_of",
]
