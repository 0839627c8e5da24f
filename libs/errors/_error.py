"""`WeirError` and its wire forms."""

from __future__ import annotations

from typing import cast

from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from weir.errors.v1 import errors_pb2

from libs.deadlines import to_duration, to_seconds
from libs.errors._codes import grpc_code
from libs.errors._reason import Reason

DOMAIN = "weir"
"""The domain of our ErrorInfo details."""

# A status travels in trailers, of which gRPC takes 8 KiB: the message twice, once percent-encoded (12 bytes for a
# character outside the basic plane) and once in base64.
_MAX_MESSAGE, _MAX_LIMIT = 400, 100


class WeirError(Exception):
    """A request could not be served as asked.

    `message` is one sentence fit for the caller (no secrets, no prompt text). `limit` names the limit or the field
    that bound. `retry_after` is in seconds; None when coming back does not help.
    """

    def __init__(self, reason: Reason, message: str, *, limit: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.limit = limit
        self.retry_after = retry_after

    def __repr__(self) -> str:
        return f"WeirError({self.reason.name}, {self.message!r}, limit={self.limit!r})"

    def to_status(self) -> status_pb2.Status:
        """As google.rpc.Status with ErrorInfo, and RetryInfo when there is a time to come back.

        A message beyond 400 characters is cut, so that the error arrives at all."""
        status = status_pb2.Status(code=grpc_code(self.reason).value[0], message=_cut(self.message, _MAX_MESSAGE))
        info = error_details_pb2.ErrorInfo(reason=self.reason.name, domain=DOMAIN)
        if self.limit:
            info.metadata["limit"] = _cut(self.limit, _MAX_LIMIT)
        _pack(status, info)
        if self.retry_after is not None:
            _pack(status, error_details_pb2.RetryInfo(retry_delay=to_duration(self.retry_after)))
        return status

    @classmethod
    def from_status(cls, status: status_pb2.Status) -> WeirError:
        """The error a Status carries; a Status without our ErrorInfo becomes INTERNAL with its message."""
        reason, limit, retry_after = Reason.INTERNAL, "", None
        for detail in status.details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo.FromString(detail.value)
                if info.domain == DOMAIN:
                    reason = Reason.parse(info.reason)
                    limit = info.metadata.get("limit", "")
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                retry_after = to_seconds(error_details_pb2.RetryInfo.FromString(detail.value).retry_delay)
        return cls(reason, status.message, limit=limit, retry_after=retry_after)

    def to_rejection(self) -> errors_pb2.Rejection:
        """As a domain refusal inside a frame."""
        rejection = errors_pb2.Rejection(
            reason=cast("errors_pb2.Reason", int(self.reason)), message=self.message, limit=self.limit
        )
        if self.retry_after is not None:
            rejection.retry_after.CopyFrom(to_duration(self.retry_after))
        return rejection

    @classmethod
    def from_rejection(cls, rejection: errors_pb2.Rejection) -> WeirError:
        """The error a domain refusal stands for; an unknown reason becomes INTERNAL."""
        known = rejection.reason in Reason._value2member_map_ and rejection.reason != Reason.UNSPECIFIED
        return cls(
            Reason(rejection.reason) if known else Reason.INTERNAL,
            rejection.message,
            limit=rejection.limit,
            retry_after=to_seconds(rejection.retry_after) if rejection.HasField("retry_after") else None,
        )


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _pack(status: status_pb2.Status, message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> None:
    packed = any_pb2.Any()
    packed.Pack(message)
    status.details.append(packed)
