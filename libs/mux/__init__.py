"""Multiplexed bidirectional streams: many calls of one process on one long-lived gRPC stream.

`MuxClient` and `MuxServer` are the two ends; `Codec` knows the frames of one `Session` RPC; `Semantics` says, per
call, what a lost stream means for it. See README.md in this folder.
"""

from libs.mux.carrier import carrier, give_up_all
from libs.mux.client import MuxClient
from libs.mux.codec import Codec
from libs.mux.core import Semantics
from libs.mux.decision import start_decision, tell
from libs.mux.dialer import Dialer
from libs.mux.endings import MuxCall, OnReply
from libs.mux.options import ClientOptions, ServerOptions
from libs.mux.replicas import Replicas
from libs.mux.server import CallContext, MuxServer, Session

__all__ = [
    "CallContext",
    "ClientOptions",
    "Codec",
    "Dialer",
    "MuxCall",
    "MuxClient",
    "MuxServer",
    "OnReply",
    "Replicas",
    "Semantics",
    "ServerOptions",
    "Session",
    "carrier",
    "give_up_all",
    "start_decision",
    "tell",
]
