"""Frames between a worker and its engine's process."""

from __future__ import annotations

import fcntl
import itertools
import resource
import select
import socket
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.engines.child import SocketLink
from services.worker.engines.core import Add, Cancel, Embed, Embedded, Failed, Idle, Stepped, Stop
from services.worker.engines.driven import NO_CAPACITY
from services.worker.engines.port import (
    Capacity,
    EngineLoadError,
    SamplingParams,
    SequenceRequest,
    StepOutput,
    Structure,
    TokenLogprob,
)
from services.worker.engines.wire import CoreError, FrameReader, Log, decode_command, decode_said, frame, raw_frame

LOAD = Capacity(free_blocks=3, running=2, waiting=1, queued_prefill_tokens=7, last_step_seconds=0.25, cached_blocks=1)
SEQUENCE = SequenceRequest(
    handle=2**40,
    model="m@1",
    prompt=[1, 2**20],
    params=SamplingParams(
        max_tokens=4,
        temperature=0.5,
        logit_bias={5: -1.5},
        seed=2**64 - 1,
        stop_token_ids=(3, 4),
        min_tokens=2,
        bad_words=((5, 6), (7,)),
        logprobs=0,
        structure=Structure("regex", "[a-ü]+"),
    ),
    deadline=12.5,
    priority=-3,
    cache_salt=b"\x00\xff",
    group=9,
)
STEP = StepOutput(
    step=7,
    handles=[1, 2],
    tokens=[[5, 6], []],
    finish=[0, 5],
    logprobs={1: [TokenLogprob(-0.5, [(7, -1.5)]), TokenLogprob(float("-inf"), [])]},
    errors={2: "a reason"},
    prompt_tokens_cached={1: 16},
    step_seconds=0.002,
)
COMMANDS = [Add([SEQUENCE]), Cancel([1, 2**40]), Embed(3, "m@1", [[1], [2, 3]]), Stop()]
SAID = [
    Stepped(STEP, LOAD, 12),
    Idle(LOAD, 0),
    Embedded(4, [[0.5, -0.5]]),
    Log("core", 30, "warm", {"degrees": 71, "which": ["a", None]}),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_arrives_as_it_was_sent(command):
    [message] = FrameReader().feed(bytes(frame(command)))
    assert decode_command(message) == command


@pytest.mark.parametrize("said", SAID, ids=lambda said: type(said).__name__)
def test_a_report_arrives_as_it_was_sent(said):
    [message] = FrameReader().feed(bytes(frame(said)))
    assert decode_said(message) == said


@pytest.mark.parametrize(
    ("sent", "kind", "text"),
    [
        (EngineLoadError("model.safetensors: truncated"), EngineLoadError, "model.safetensors: truncated"),
        (UnicodeError("bad"), ValueError, "bad"),
        (RuntimeError("device lost"), CoreError, "RuntimeError: device lost"),
    ],
)
def test_errors_keep_what_callers_tell_apart(sent, kind, text):
    [message] = FrameReader().feed(bytes(frame(Failed(sent))))
    error = decode_said(message).error
    assert (type(error), str(error)) == (kind, text)


def test_nothing_else_can_be_sent():
    with pytest.raises(TypeError, match="object cannot be sent"):
        frame(Embedded(1, [[object()]]))  # type: ignore[list-item]


@given(st.lists(st.integers(0, 40), max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_frames_are_found_however_the_stream_is_cut(sizes, cuts):
    sent = [Cancel(list(range(size))) for size in sizes]
    stream = b"".join(bytes(frame(each)) for each in sent)
    reader, found = FrameReader(), []
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    for start, end in itertools.pairwise(places):
        found += [decode_command(message) for message in reader.feed(stream[start:end])]
    assert found == sent


def test_garbage_is_refused():
    with pytest.raises(ValueError, match="a frame of"):
        list(FrameReader().feed(b"\xff" * 16))
    with pytest.raises(msgspec.MsgspecError):
        decode_said(b"\x93\x01\x02\x03")


class Ends:
    """A core's link and the worker's end of it."""

    def __init__(self, *, unsent: int) -> None:
        self.worker, core = socket.socketpair()
        self.worker.settimeout(60)
        core.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # as little as the system lets it be
        self.link = SocketLink(core)
        self.link.max_unsent = unsent
        self._reader = FrameReader()

    def read(self) -> list[int]:
        """The steps' numbers that are there to read."""
        return [decode_said(message).output.step for message in self._reader.feed(self.worker.recv(1 << 16))]


@pytest.fixture
def ends():
    made = Ends(unsent=3)
    yield made
    made.worker.close()
    made.link._socket.close()


def step(number: int) -> Stepped:
    return Stepped(StepOutput(number, [], [], [], {}, {}, {}), LOAD, 0)


def test_a_core_goes_on_until_its_bound_and_then_waits_for_the_worker(ends):
    told = 0
    while len(ends.link._unsent) <= 3:
        assert ends.link.receive(idle=False) == []  # nothing to do, nothing to wait for
        ends.link.report(step(told))
        told += 1
    received = []
    core = threading.Thread(target=lambda: received.append(ends.link.receive(idle=False)), daemon=True)
    core.start()
    ends.worker.sendall(frame(Cancel([1])))  # a command alone does not end the wait
    read: list[int] = []
    while core.is_alive():
        if select.select([ends.worker], [], [], 0.01)[0]:  # it may end at any moment, and then nothing more comes
            read += ends.read()
    assert received == [[Cancel([1])]]
    assert read  # it could not have ended before
    ends.link.flush()
    while len(read) < told:
        read += ends.read()
    assert read == list(range(told))


def test_an_idle_core_sleeps_until_a_command_and_stops_when_told(ends):
    received = []
    core = threading.Thread(target=lambda: received.append(ends.link.receive(idle=True)), daemon=True)
    core.start()
    ends.worker.sendall(frame(Cancel([4])))
    core.join(60)
    assert received == [[Cancel([4])]]
    ends.worker.sendall(frame(Cancel([5])) + frame(Stop()))
    assert ends.link.receive(idle=True) is None


def test_a_core_whose_worker_is_gone_stops(ends):
    ends.worker.close()
    assert ends.link.receive(idle=True) is None
    ends.link.report(step(1))  # goes nowhere, harms nothing
    assert ends.link.receive(idle=False) is None


def test_a_first_frame_may_come_in_pieces(ends):
    hello = b"\x05\x00\x00\x00abcde"
    for byte in hello[:-1]:
        ends.worker.sendall(bytes([byte]))
    read = []
    core = threading.Thread(target=lambda: read.append(ends.link.hello()), daemon=True)
    core.start()
    ends.worker.sendall(hello[-1:])
    core.join(60)
    assert read == [b"abcde"]
    ends.worker.sendall(frame(Cancel([1])))
    assert ends.link.receive(idle=True) == [Cancel([1])]


def test_e5_a_socket_may_have_any_number():
    """As it has when the worker holds thousands of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    worker, core = socket.socketpair()
    high = socket.socket(fileno=fcntl.fcntl(core.fileno(), fcntl.F_DUPFD, 2000))
    try:
        link = SocketLink(high)
        worker.sendall(raw_frame(b"hello"))
        assert link.hello() == b"hello"
        worker.sendall(frame(Cancel([7])))
        assert link.receive(idle=True) == [Cancel([7])]
        link.wake()
        assert link.receive(idle=True) == []
        link.say(Idle(NO_CAPACITY, 3))
        link.flush()
        [said] = FrameReader().feed(worker.recv(1 << 16))
        assert decode_said(said) == Idle(NO_CAPACITY, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in (worker, core, high):
            each.close()
