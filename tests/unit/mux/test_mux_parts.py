"""Back-off, codec and wake-up."""

from __future__ import annotations

import asyncio

import pytest
from google.rpc import status_pb2
from weir.mux.v1 import mux_pb2
from weir.quota.v1 import quota_pb2
from weir.safety.v1 import safety_pb2
from weir.worker.v1 import worker_pb2

from libs.deadlines import to_seconds
from libs.mux import Codec
from libs.mux.backoff import Backoff
from libs.mux.codec import set_call_header
from libs.mux.wake import Wake


@pytest.mark.parametrize("draw", [0.0, 0.999])
def test_backoff_starts_fast_doubles_and_is_capped(draw: float):
    backoff = Backoff(first=0.02, cap=1.0, uniform=lambda: draw)
    delays = [backoff.next() for _ in range(60)]
    assert delays[0] <= 0.05
    assert delays == sorted(delays)
    assert 0.5 <= delays[-1] <= 1.0
    backoff.reset()
    assert backoff.next() == delays[0]


def test_codec_builds_the_frames_of_its_domain():
    codec = Codec.of(quota_pb2.SessionRequest, quota_pb2.SessionResponse)
    assert (codec.call_type, codec.reply_type, codec.domain) == (quota_pb2.QuotaCall, quota_pb2.QuotaReply, "quota")
    item = quota_pb2.QuotaCall(reserve=quota_pb2.Reserve(tenant="acme"))
    set_call_header(item, 7, 1.25, "tp")
    frame = codec.calls([item, item])
    assert [call.header.id for call in frame.calls.items] == [7, 7]
    assert to_seconds(frame.calls.items[0].header.remaining) == 1.25
    assert frame.calls.items[0].header.traceparent == "tp"
    assert codec.op_of(item) == "reserve"
    assert list(codec.cancel([1, 2]).cancel.ids) == [1, 2]
    assert codec.failure(9, status_pb2.Status(code=3)).header.error.code == 3
    assert codec.welcome("i", 5).welcome.max_in_flight == 5
    assert codec.go_away("draining").go_away.reason == "draining"
    assert codec.hello(mux_pb2.Hello(service="gateway")).hello.service == "gateway"


def test_a_positive_remaining_time_stays_positive():
    item = quota_pb2.QuotaCall()
    set_call_header(item, 1, 1e-12, "")
    assert to_seconds(item.header.remaining) > 0


def test_codec_refuses_messages_of_another_shape():
    with pytest.raises(TypeError, match="cancel is not a"):
        Codec.of(worker_pb2.SessionRequest, safety_pb2.SessionResponse)


async def test_wake_keeps_a_set_that_nobody_waited_for():
    wake = Wake()
    wake.set()
    await wake.wait()
    waiter = asyncio.ensure_future(wake.wait())
    await asyncio.sleep(0)
    assert not waiter.done()
    wake.set()
    wake.set()
    await waiter
