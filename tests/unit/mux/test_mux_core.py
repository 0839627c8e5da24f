"""The client's state machine under random losses, drains, reorderings, cancels and clock moves."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from libs.mux.core import Call, ClientCore, Outcome, Place, Semantics, Stream

FAR = 1e9


def make(item: str = "x", *, deadline: float = FAR, semantics: Semantics = Semantics.RETRY, pinned: int = 0):
    return Call(item, deadline=deadline, semantics=semantics, pinned=pinned, size=1)


def take(core: ClientCore, stream: Stream, now: float = 0.0, max_items: int = 100):
    return core.take(stream, now, max_items=max_items, max_bytes=1 << 20)


def test_calls_leave_in_order_as_far_as_the_window_allows():
    core = ClientCore(max_queued=10, max_attempts=3)
    calls = [make(str(i)) for i in range(5)]
    assert all(core.submit(call) for call in calls)
    stream = core.open(window=3)
    taken, ended = take(core, stream)
    assert [call.item for call in taken] == ["0", "1", "2"]
    assert [call.id for call in taken] == [1, 2, 3]
    assert ended == []
    assert not core.has_work
    assert core.answer(stream, 2) is calls[1]
    assert core.has_work
    assert [call.item for call in take(core, stream)[0]] == ["3"]


def test_a_frame_is_closed_by_bytes():
    core = ClientCore(max_queued=10, max_attempts=3)
    for _ in range(4):
        core.submit(make())
    stream = core.open(window=10)
    assert len(core.take(stream, 0.0, max_items=10, max_bytes=2)[0]) == 2


def test_a_full_queue_refuses():
    core = ClientCore(max_queued=1, max_attempts=3)
    assert core.submit(make())
    assert not core.submit(make())


def test_a_lost_stream_ends_once_calls_and_requeues_retry_calls_before_younger_ones():
    core = ClientCore(max_queued=10, max_attempts=3)
    first, once, younger = make("first"), make("once", semantics=Semantics.ONCE), make("younger")
    core.submit(first)
    core.submit(once)
    stream = core.open(window=10)
    take(core, stream)
    core.submit(younger)
    assert core.lose(stream) == [(once, Outcome.LOST)]
    assert core.lose(stream) == []
    assert [call.item for call in take(core, core.open(window=10))[0]] == ["first", "younger"]


def test_a_once_call_that_was_never_written_survives_a_lost_stream():
    core = ClientCore(max_queued=10, max_attempts=3)
    stream = core.open(window=1)
    core.submit(make("a", semantics=Semantics.ONCE))
    take(core, stream)
    waiting = make("b", semantics=Semantics.ONCE)
    core.submit(waiting)
    core.lose(stream)
    assert take(core, core.open(window=1))[0] == [waiting]


def test_attempts_are_bounded():
    core = ClientCore(max_queued=10, max_attempts=2)
    call = make()
    core.submit(call)
    stream = core.open(1)
    take(core, stream)
    assert core.lose(stream) == []
    stream = core.open(1)
    take(core, stream)
    assert core.lose(stream) == [(call, Outcome.LOST)]


def test_a_pinned_call_never_changes_streams():
    core = ClientCore(max_queued=10, max_attempts=3)
    stream = core.open(1)
    pinned = make(pinned=stream.generation)
    core.submit(pinned)
    assert core.lose(stream) == [(pinned, Outcome.LOST)]
    late = make(pinned=stream.generation)
    core.submit(late)
    assert take(core, core.open(1)) == ([], [(late, Outcome.LOST)])


def test_expiry_tells_unreachable_from_late():
    core = ClientCore(max_queued=10, max_attempts=3)
    early = make(deadline=1.0)
    core.submit(early)
    assert core.next_deadline == 1.0
    assert core.expire(0.5) == []
    assert core.expire(1.0) == [(early, Outcome.UNAVAILABLE)]
    written, late = make(deadline=2.0), make(deadline=3.0)
    core.submit(written)
    core.submit(late)
    stream = core.open(10)
    take(core, stream, now=1.5)
    assert core.expire(2.0) == [(written, Outcome.DEADLINE)]
    assert stream.cancels == [written.id]
    assert core.next_deadline == 3.0
    assert core.answer(stream, written.id) is None


def test_an_expired_call_is_never_written():
    core = ClientCore(max_queued=10, max_attempts=3)
    call = make(deadline=1.0)
    core.submit(call)
    assert take(core, core.open(1), now=1.0) == ([], [(call, Outcome.DEADLINE)])


def test_a_refused_once_call_moves_to_the_next_stream():
    core = ClientCore(max_queued=10, max_attempts=3)
    call = make(semantics=Semantics.ONCE)
    core.submit(call)
    old = core.open(1)
    take(core, old)
    core.drain(old)
    assert core.current is None
    assert not old.finished
    assert core.refuse(old, [call.id, 77]) == []
    assert old.finished
    assert take(core, core.open(1))[0] == [call]


def test_cancelling_a_queued_call_tells_nobody():
    core = ClientCore(max_queued=10, max_attempts=3)
    call = make()
    core.submit(call)
    assert not core.cancel(call)
    assert core.queued == 0
    assert not core.cancel(call)


def test_close_ends_everything_and_takes_nothing_more():
    core = ClientCore(max_queued=10, max_attempts=3)
    first, second = make(), make()
    core.submit(first)
    stream = core.open(1)
    take(core, stream)
    core.submit(second)
    assert sorted(outcome.value for _, outcome in core.close()) == ["closed", "closed"]
    assert not core.submit(make())


class Network(RuleBasedStateMachine):
    """A client core against a model of servers that may lose frames in either direction with their stream."""

    @initialize(window=st.integers(1, 4))
    def begin(self, window: int) -> None:
        self.window = window
        self.core: ClientCore[int] = ClientCore(max_queued=20, max_attempts=1000)
        self.now = 0.0
        self.calls: list[Call[int]] = []
        self.outcomes: dict[int, list[str]] = {}
        self.executed: dict[int, int] = {}
        self.streams: list[Stream[int]] = []
        self.wire: dict[int, list[Call[int]]] = {}  # generation: written, not yet read by the server
        self.ids: dict[int, list[tuple[int, int]]] = {}
        self.replies: dict[int, list[tuple[str, int]]] = {}  # generation: (kind, id) on the way back

    def record(self, call: Call[int], outcome: str) -> None:
        self.outcomes[call.item].append(outcome)

    def record_all(self, ended) -> None:
        for call, outcome in ended:
            self.record(call, outcome.value)

    @rule(once=st.booleans(), patience=st.sampled_from([1.0, 5.0, FAR]))
    def submit(self, once: bool, patience: float) -> None:
        item = len(self.calls)
        call = make(deadline=self.now + patience, semantics=Semantics.ONCE if once else Semantics.RETRY)
        call.item = item
        if self.core.submit(call):
            self.calls.append(call)
            self.outcomes[item] = []
            self.executed[item] = 0

    @precondition(lambda self: self.core.current is None and len(self.streams) < 3)
    @rule()
    def connect(self) -> None:
        stream = self.core.open(self.window)
        self.streams.append(stream)
        self.wire[stream.generation] = []
        self.ids[stream.generation] = []
        self.replies[stream.generation] = []

    @precondition(lambda self: self.core.current is not None)
    @rule(count=st.integers(1, 5))
    def write(self, count: int) -> None:
        stream = self.core.current
        assert stream is not None
        calls, ended = take(self.core, stream, self.now, count)
        self.record_all(ended)
        self.wire[stream.generation] += calls
        self.ids[stream.generation] += [(call.id, call.item) for call in calls]
        assert len(stream.in_flight) <= self.window

    @precondition(lambda self: any(self.ids.get(stream.generation) for stream in self.streams))
    @rule(data=st.data())
    def execute(self, data: st.DataObject) -> None:
        """A server reads the oldest call on a stream and executes it, or refuses it because it drains."""
        stream = data.draw(st.sampled_from([s for s in self.streams if self.ids[s.generation]]))
        call_id, item = self.ids[stream.generation].pop(0)
        if stream.draining and data.draw(st.booleans()):
            self.replies[stream.generation].append(("refused", call_id))
        else:
            self.executed[item] += 1
            self.replies[stream.generation].append(("done", call_id))

    @precondition(lambda self: any(self.replies.get(stream.generation) for stream in self.streams))
    @rule(data=st.data(), twice=st.booleans())
    def reply(self, data: st.DataObject, twice: bool) -> None:
        """Any reply under way arrives, maybe twice."""
        stream = data.draw(st.sampled_from([s for s in self.streams if self.replies[s.generation]]))
        position = data.draw(st.integers(0, len(self.replies[stream.generation]) - 1))
        kind, call_id = self.replies[stream.generation].pop(position)
        for _ in range(1 + twice):
            if kind == "refused":
                self.record_all(self.core.refuse(stream, [call_id]))
            elif (call := self.core.answer(stream, call_id)) is not None:
                self.record(call, "reply")

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(self.streams))
        self.streams.remove(stream)
        self.record_all(self.core.lose(stream))

    @precondition(lambda self: self.core.current is not None)
    @rule()
    def go_away(self) -> None:
        assert self.core.current is not None
        self.core.drain(self.core.current)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.calls))
        if call.place is not Place.DONE:
            self.record(call, "cancelled")
        self.core.cancel(call)

    @rule(seconds=st.sampled_from([0.3, 2.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.record_all(self.core.expire(self.now))

    @invariant()
    def one_outcome_each(self) -> None:
        for call in getattr(self, "calls", []):
            outcomes = self.outcomes[call.item]
            assert len(outcomes) == (call.place is Place.DONE), (call.item, outcomes)
            if call.semantics is Semantics.ONCE:
                assert self.executed[call.item] <= 1
            if outcomes == ["reply"]:
                assert self.executed[call.item] >= 1

    @invariant()
    def nothing_overdue_hides(self) -> None:
        for call in getattr(self, "calls", []):
            if call.place is not Place.DONE:
                assert call.deadline >= self.core.next_deadline

    def teardown(self) -> None:
        """In the end the network heals: everything that is left gets answered."""
        if not hasattr(self, "core"):
            return
        for stream in list(self.streams):
            self.record_all(self.core.lose(stream))
        self.streams.clear()
        stream = self.core.open(self.window)
        while self.core.has_work:
            calls, ended = take(self.core, stream, self.now)
            self.record_all(ended)
            for call in calls:
                self.executed[call.item] += 1
                answered = self.core.answer(stream, call.id)
                assert answered is call
                self.record(call, "reply")
        self.one_outcome_each()
        assert self.core.queued == 0
        assert self.core.in_flight == 0
        for call in self.calls:
            assert len(self.outcomes[call.item]) == 1
            if call.semantics is Semantics.RETRY and call.deadline == FAR:
                assert self.outcomes[call.item][0] in ("reply", "cancelled")


Network.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestNetwork = Network.TestCase
