"""`WeirError` and its wire forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from google.protobuf import any_pb2
from google.protobuf.message import Message
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
_MAX_TRAILERS = 7600
"""Bytes; the rest is for other trailers."""
_MAX_FAULTS, _FAULT = 2000, 16
"""Bytes of all faults, and of what is around each."""


class WeirError(Exception):
    """A request could not be served as asked.

    `message` is one sentence fit for the caller (no secrets, no prompt text). `limit` names the limit or the field
    that bound. `retry_after` is in seconds; None when coming back does not help. `faults` are all faults of a request
    that has several, by field path; of many, the first travel.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        limit: str = "",
        retry_after: float | None = None,
        faults: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.limit = limit
        self.retry_after = retry_after
        self.faults = tuple(faults)

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
        if self.faults:
            room = (_MAX_TRAILERS - _on_the_wire(status)) * 3 // 4
            _pack(status, _bad_request(self.faults, min(_MAX_FAULTS, room)))
        return status

    @classmethod
    def from_status(cls, status: status_pb2.Status) -> WeirError:
        """The error a Status carries; a Status without our ErrorInfo becomes INTERNAL with its message."""
        reason, limit, retry_after = Reason.INTERNAL, "", None
        bad = error_details_pb2.BadRequest()
        for detail in status.details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo.FromString(detail.value)
                if info.domain == DOMAIN:
                    reason = Reason.parse(info.reason)
                    limit = info.metadata.get("limit", "")
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                retry_after = to_seconds(error_details_pb2.RetryInfo.FromString(detail.value).retry_delay)
            elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                bad.MergeFromString(detail.value)
        faults = [(each.field, each.description) for each in bad.field_violations]
        return cls(reason, status.message, limit=limit, retry_after=retry_after, faults=faults)

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


def _on_the_wire(status: status_pb2.Status) -> int:
    """Bytes in trailers: of the message percent-encoded, and of all of it in base64."""
    encoded = sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in status.message.encode())
    return encoded + 4 * (status.ByteSize() + 2) // 3


def _bad_request(faults: Sequence[tuple[str, str]], room: int) -> error_details_pb2.BadRequest:
    """As many of them as there is room for, in bytes."""
    made = error_details_pb2.BadRequest()
    for number, (field, description) in enumerate(faults):
        field, description = _cut(field, _MAX_LIMIT), _cut(description, _MAX_LIMIT)
        room -= len(field.encode()) + len(description.encode()) + _FAULT
        if room < 0:
            made.field_violations.add(field="…", description=f"and {len(faults) - number} more")
            break
        made.field_violations.add(field=field, description=description)
    return made


def _pack(status: status_pb2.Status, message: Message) -> None:
    packed = any_pb2.Any()
    packed.Pack(message)
    status.details.append(packed)
