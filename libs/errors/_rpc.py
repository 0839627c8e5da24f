"""Foreign gRPC failures, mapped once."""

from __future__ import annotations

import re

import grpc
from google.rpc import status_pb2

from libs.errors._codes import reason_of_code
from libs.errors._error import WeirError
from libs.errors._reason import Reason

STATUS_DETAILS_KEY = "grpc-status-details-bin"
_UNHEARD = grpc.StatusCode.INTERNAL, "Internal error from Core"
"""What grpc.aio puts in the place of a status that it had not read when a write failed (`set_internal_error` in
grpc/aio/_call.py): the stream had ended, and why is not told any more."""
_TOO_LARGE = re.compile(r"message larger than max \(\d+ vs\. \d+\)$")
"""gRPC's own words of a message beyond the bound of whoever receives or sends it, which no code of ours has seen."""


def from_rpc_error(error: grpc.aio.AioRpcError) -> WeirError:
    """The WeirError that a failed RPC carries in its details, or the nearest one for its bare code. One that ended
    under a write, so that nobody knows how, is DEPENDENCY_UNAVAILABLE: whoever asks again hears it."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            return WeirError.from_status(status_pb2.Status.FromString(value))
    if (error.code(), error.details()) == _UNHEARD:
        return WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the stream ended while it was written on")
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE.search(error.details() or ""):
        return WeirError(Reason.PAYLOAD_TOO_LARGE, error.details() or "", limit="max_message_bytes")
    return WeirError(reason_of_code(error.code()), error.details() or error.code().name)
