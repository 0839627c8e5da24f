"""The reason set is closed and the same everywhere."""

from string import printable
from urllib.parse import quote

import grpc
import pytest
from google.rpc import status_pb2
from hypothesis import given
from hypothesis import strategies as st
from weir.errors.v1 import errors_pb2

from libs.errors import Reason, WeirError, grpc_code, http_status


def test_python_and_proto_name_the_same_reasons() -> None:
    proto = {name.removeprefix("REASON_"): number for name, number in errors_pb2.Reason.items()}
    assert proto == {reason.name: reason.value for reason in Reason}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_both_codes(reason: Reason) -> None:
    assert isinstance(grpc_code(reason), grpc.StatusCode)
    assert grpc_code(reason) is not grpc.StatusCode.OK
    assert 400 <= http_status(reason) <= 599


errors = st.builds(
    WeirError,
    st.sampled_from([r for r in Reason if r is not Reason.UNSPECIFIED]),
    st.text(max_size=50),
    limit=st.text(max_size=20),
    retry_after=st.none() | st.floats(0, 3600, allow_nan=False).map(lambda s: round(s, 6)),
)


def _fields(error: WeirError) -> tuple[object, ...]:
    retry = None if error.retry_after is None else pytest.approx(error.retry_after, abs=1e-6)
    return error.reason, error.message, error.limit, retry


@given(errors)
def test_a_status_carries_the_whole_error(error: WeirError) -> None:
    wire = error.to_status().SerializeToString()
    assert _fields(WeirError.from_status(status_pb2.Status.FromString(wire))) == _fields(error)


@given(errors)
def test_a_rejection_carries_the_whole_error(error: WeirError) -> None:
    wire = error.to_rejection().SerializeToString()
    assert _fields(WeirError.from_rejection(errors_pb2.Rejection.FromString(wire))) == _fields(error)


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=5))
def test_a_status_carries_all_faults_that_there_is_room_for(faults: list[tuple[str, str]]) -> None:
    error = WeirError(Reason.INVALID_REQUEST, "no", faults=faults)
    back = WeirError.from_status(status_pb2.Status.FromString(error.to_status().SerializeToString()))
    assert back.faults == tuple(faults)


WIDE = st.text(st.sampled_from("a\U0001f4a9"), min_size=300, max_size=3000)


@given(st.text(max_size=3000) | WIDE, st.text(max_size=3000) | WIDE, st.integers(1, 3000))
def test_no_error_is_too_large_for_trailers(text: str, field: str, count: int) -> None:
    """gRPC takes 8 KiB: the message percent-encoded, and the status in base64."""
    error = WeirError(Reason.INVALID_REQUEST, text, limit=field, faults=[(field, text)] * count)
    status = error.to_status()
    assert len(quote(status.message, safe=printable)) + 4 * (status.ByteSize() + 2) // 3 < 8192 - 256
    back = WeirError.from_status(status)
    told = [each for each in back.faults if each[0] != "…"]
    if len(told) < count:
        assert back.faults[-1] == ("…", f"and {count - len(told)} more")


def test_an_unknown_reason_is_internal() -> None:
    assert Reason.parse("FROM_THE_FUTURE") is Reason.INTERNAL
    rejection = errors_pb2.Rejection(message="?")
    rejection.ParseFromString(b"\x08\xff\x07")  # reason = 1023
    assert WeirError.from_rejection(rejection).reason is Reason.INTERNAL
