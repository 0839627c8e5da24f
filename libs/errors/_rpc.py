"""Foreign gRPC failures, mapped once."""

from __future__ import annotations

import grpc
from google.rpc import status_pb2

from libs.errors._codes import reason_of_code
from libs.errors._error import WeirError

STATUS_DETAILS_KEY = "grpc-status-details-bin"


def from_rpc_error(error: grpc.aio.AioRpcError) -> WeirError:
    """The WeirError that a failed RPC carries in its details, or the nearest one for its bare code."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            return WeirError.from_status(status_pb2.Status.FromString(value))
    return WeirError(reason_of_code(error.code()), error.details() or error.code().name)
