"""Which models are in memory: the rules of leaving, and that nobody waits for ever."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.worker.policy.residency import Outcome, Residency

NOBODY: frozenset[str] = frozenset()


def settle(residency, model, size, now, busy=NOBODY):
    """Want a model that can be loaded at once, and load it."""
    decision = residency.want(model, size, now, busy)
    assert decision.load, decision
    residency.loaded(model, now)
    return decision


def full(*, minimum=10.0, **options):
    """A budget of 100 with a (40, used at 0) and b (40, used at 1)."""
    residency = Residency(100, minimum, **options)
    settle(residency, "a", 40, 0.0)
    settle(residency, "b", 40, 1.0)
    return residency


def test_the_least_recently_used_leaves():
    residency = full()
    assert residency.want("a", 40, 20.0, NOBODY).outcome is Outcome.RESIDENT
    assert settle(residency, "c", 40, 21.0).evict == ("b",)
    assert set(residency.resident) == {"a", "c"}
    assert (residency.used_bytes, residency.free_bytes) == (80, 20)


def test_only_as_many_leave_as_are_needed():
    residency = Residency(100, 0.0)
    for model, size in (("small", 10), ("large", 60), ("last", 30)):
        settle(residency, model, size, 0.0 if model == "small" else 1.0)
    # In order of use small would leave as well, but large alone makes the room.
    assert settle(residency, "new", 55, 2.0).evict == ("large",)


def test_what_can_never_fit_is_refused_at_once():
    residency = Residency(100, 10.0, pinned=("p",))
    refused = residency.want("huge", 101, 0.0, NOBODY)
    assert refused.outcome is Outcome.REFUSED
    assert "101" in refused.reason
    settle(residency, "p", 50, 0.0)
    refused = residency.want("large", 51, 100.0, NOBODY)
    assert refused.outcome is Outcome.REFUSED
    assert "pinned" in refused.reason
    assert residency.waiting == ()


def test_a_young_model_stays_until_its_time_is_over():
    residency = full()
    waiting = residency.want("c", 40, 5.0, NOBODY)
    assert (waiting.outcome, waiting.wait_until) == (Outcome.WAIT, 10.0)
    assert residency.yielding == frozenset()
    assert settle(residency, "c", 40, 10.0).evict == ("a",)


def test_a_busy_model_yields_and_then_leaves():
    residency = full()
    busy = {"a", "b"}
    waiting = residency.want("c", 40, 20.0, busy)
    assert (waiting.outcome, waiting.wait_until) == (Outcome.WAIT, None)
    assert residency.yielding == {"a"}
    # b goes on; a takes nothing new and queues behind c.
    assert residency.want("b", 40, 21.0, busy).outcome is Outcome.RESIDENT
    assert residency.want("a", 40, 21.0, busy).outcome is Outcome.WAIT
    assert residency.waiting == ("c", "a")
    assert settle(residency, "c", 40, 22.0, {"b"}).evict == ("a",)
    assert residency.yielding == frozenset()


def test_the_choice_of_who_yields_does_not_waver():
    residency = full()
    busy = {"a", "b"}
    residency.want("c", 40, 20.0, busy)
    residency.used("a", 21.0)  # a late report of work that was taken before
    residency.want("c", 40, 22.0, busy)
    assert residency.yielding == {"a"}


def test_pinned_models_stay_whatever_waits():
    residency = full(pinned=("a",))
    assert settle(residency, "c", 50, 1000.0).evict == ("b",)
    assert residency.want("d", 60, 2000.0, NOBODY).load
    assert "a" in residency.resident


def test_the_first_in_the_row_is_not_overtaken_by_a_smaller_one():
    residency = full()
    assert residency.want("c", 60, 5.0, NOBODY).outcome is Outcome.WAIT
    # 20 bytes are free, and still: they are part of what c waits for.
    behind = residency.want("d", 20, 5.0, NOBODY)
    assert behind.outcome is Outcome.WAIT
    assert "behind c" in behind.reason
    residency.forget("c")
    assert residency.want("d", 20, 5.0, NOBODY).load


def test_a_loading_model_is_waited_for_and_a_failed_one_gives_its_room_back():
    residency = Residency(100, 10.0)
    assert residency.want("a", 80, 0.0, NOBODY).load
    assert residency.want("a", 80, 0.0, NOBODY).outcome is Outcome.WAIT
    assert residency.want("b", 80, 500.0, NOBODY).outcome is Outcome.WAIT
    residency.failed("a")
    assert residency.want("b", 80, 500.0, NOBODY).load


def test_standbys_fill_free_room_and_are_the_last_to_leave():
    residency = Residency(100, 10.0, standby=("s1", "s2"))
    sizes = {"s1": 40, "s2": 30}
    settle(residency, "a", 30, 0.0)
    assert residency.warm_up_next(sizes, 1.0) == "s1"
    residency.loaded("s1", 1.0)
    assert residency.warm_up_next(sizes, 1.0) == "s2"
    residency.loaded("s2", 1.0)
    assert residency.warm_up_next(sizes, 1.0) is None
    # a is old enough: it leaves before the standbys although it was used after them.
    residency.used("a", 19.0)
    assert settle(residency, "b", 30, 20.0).evict == ("a",)
    # b is young; a standby that had no work may leave at once, the less important one first.
    assert settle(residency, "c", 20, 21.0).evict == ("s2",)


def test_a_standby_with_work_has_its_minimum_residency():
    residency = Residency(100, 10.0, standby=("s",))
    assert residency.warm_up_next({"s": 100}, 0.0) == "s"
    residency.loaded("s", 0.0)
    assert residency.want("s", 100, 50.0, NOBODY).outcome is Outcome.RESIDENT
    assert residency.want("a", 100, 51.0, NOBODY).wait_until == 60.0
    assert residency.warm_up_next({"s": 100}, 51.0) is None


def test_negative_settings_are_refused():
    with pytest.raises(ValueError, match="negative"):
        Residency(-1, 0.0)
    with pytest.raises(ValueError, match="negative"):
        Residency(1, float("nan"))


MODELS = ("a", "b", "c", "d", "e")


class Machine(RuleBasedStateMachine):
    """A worker that obeys: it loads and evicts as told, and gives no new work to models that yield."""

    @initialize(
        sizes=st.tuples(*[st.integers(25, 60)] * len(MODELS)),
        minimum=st.sampled_from([0.0, 3.0, 10.0]),
        pinned=st.sampled_from([(), ("a",)]),
        standby=st.sampled_from([(), ("b",), ("e", "b")]),
    )
    def start(self, sizes, minimum, pinned, standby):
        self.sizes = dict(zip(MODELS, sizes, strict=True))
        self.minimum, self.pinned = minimum, pinned
        self.residency = Residency(100, minimum, pinned, standby=standby)
        self.now = 0.0
        self.ready: dict[str, float] = {}  # when it became ready
        self.worked: set[str] = set()  # loaded for work, or used since
        self.loading: set[str] = set()
        self.busy: set[str] = set()

    def ask(self, model):
        before = set(self.residency.resident)
        yielding = self.residency.yielding
        decision = self.residency.want(model, self.sizes[model], self.now, frozenset(self.busy))
        for victim in decision.evict:
            assert victim in before
            assert victim not in self.busy
            assert victim not in self.loading
            assert victim not in self.pinned
            assert victim not in self.worked or self.now - self.ready[victim] >= self.minimum
            self.ready.pop(victim)
        assert set(self.residency.resident) == (before - set(decision.evict)) | ({model} if decision.load else set())
        if decision.load:
            self.loading.add(model)
            self.worked.add(model)
        elif decision.outcome is Outcome.RESIDENT:
            assert model in self.ready
            assert model not in yielding
            if model not in self.worked:
                self.worked.add(model)
                self.ready[model] = self.now
        elif decision.outcome is Outcome.REFUSED:
            fixed = sum(self.sizes[each] for each in self.pinned if each in before)
            assert self.sizes[model] > 100 - fixed
        return decision

    @rule(model=st.sampled_from(MODELS))
    def want(self, model):
        if self.ask(model).outcome is Outcome.RESIDENT:
            self.busy.add(model)

    @rule(seconds=st.integers(0, 8))
    def time_passes(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), well=st.booleans())
    def load_ends(self, data, well):
        model = data.draw(st.sampled_from(sorted(self.loading)))
        self.loading.remove(model)
        if well:
            self.residency.loaded(model, self.now)
            self.ready[model] = self.now
        else:
            self.residency.failed(model)
            self.worked.discard(model)

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def run_ends(self, data):
        self.busy.remove(data.draw(st.sampled_from(sorted(self.busy))))

    @rule(model=st.sampled_from(MODELS))
    def forget(self, model):
        self.residency.forget(model)

    @rule()
    def idle(self):
        room = 100 - self.residency.used_bytes
        model = self.residency.warm_up_next(self.sizes, self.now)
        if model is not None:
            assert self.sizes[model] <= room
            assert not set(self.residency.waiting) - set(self.residency.resident) - {model}
            self.loading.add(model)
            self.worked.discard(model)

    @rule()
    def the_first_in_the_row_gets_its_turn(self):
        """However busy the others are: once the loads have ended, the minimum residency and one run are enough."""
        row = [model for model in self.residency.waiting if model not in self.residency.resident]
        if not row:
            return
        for model in sorted(self.loading):
            self.residency.loaded(model, self.now)
            self.ready[model] = self.now
        self.loading.clear()
        self.now += self.minimum
        if self.ask(row[0]).outcome is Outcome.WAIT:
            # What runs comes to its end; what does not yield gets new work at once.
            assert self.residency.yielding
            self.busy = set(self.ready) - self.residency.yielding
            assert self.ask(row[0]).load

    @invariant()
    def the_budget_is_kept(self):
        assert self.residency.used_bytes <= 100
        assert self.residency.used_bytes == sum(self.sizes[each] for each in self.residency.resident)

    @invariant()
    def yielding_models_are_resident_and_may_leave(self):
        for model in self.residency.yielding:
            assert model in self.ready
            assert model not in self.pinned


TestMachine = Machine.TestCase
