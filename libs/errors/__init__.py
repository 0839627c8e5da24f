"""The one error type of the mesh and its two code tables.

    WeirError(reason, message, limit=…, retry_after=…)

A `Reason` is a member of one closed set (`weir.errors.v1.Reason`); it is the wire reason, the metric label and the
log field at once. Services raise `WeirError`; interceptors (libs.rpc) turn it into a gRPC status with
`google.rpc.ErrorInfo` and `RetryInfo`, the gateway's OpenAI facade into an HTTP status and an error envelope.
Nothing else decides on codes.
"""

from libs.errors._codes import grpc_code, http_status
from libs.errors._error import DOMAIN, WeirError
from libs.errors._reason import Reason
from libs.errors._rpc import from_rpc_error

__all__ = ["DOMAIN", "Reason", "WeirError", "from_rpc_error", "grpc_code", "http_status"]
