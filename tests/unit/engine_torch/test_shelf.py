"""Models and adapters that do not all fit: who is read when, who gives way, and what becomes of those that fail."""

import shutil

import pytest
import support_checkpoints as support
import support_oracle as oracle

from libs.clock import ManualClock
from services.worker.engines.port import EngineLoadError, FinishReason
from services.worker.engines.torch_engine.settings import AdapterSource, TorchSettings
from services.worker.engines.torch_engine.shelf import Shelf

MODELS = ("a@1", "b@1", "c@1")
ADAPTERS = {"a+1@1": "a@1", "a+2@1": "a@1", "a+3@1": "a@1", "b+1@1": "b@1"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint under each model's name, and adapters (of equal content) for two of them."""
    root = tmp_path_factory.mktemp("shelf")
    world = oracle.World(root, prompts=0, adapted=0)
    sources = dict.fromkeys(MODELS, world.folder("narrow@1")) | dict.fromkeys(ADAPTERS, world.folder("narrow+some@1"))
    for name, source in sources.items():
        shutil.copytree(source, root / name)
        support.write_manifest(root / name, name)
    return root


class Rig:
    """A shelf for models of ten bytes that are made at once and hold names of adapters; who runs is up to the test."""

    def __init__(self, folders, *, models=MODELS, adapters=(), broken=(), **settings):
        self.clock = ManualClock()
        self.made, self.broken, self.busy, self.used = [], set(broken), set(), set()
        self.most = settings.get("max_adapters", 8)
        sources = {name: AdapterSource(base=ADAPTERS[name], folder=folders / name) for name in adapters}
        self.shelf = Shelf(
            TorchSettings(models={model: folders / model for model in models}, adapters=sources, **settings),
            clock=self.clock,
            size=lambda config: 10,
            make=self.make,
            admit=self.admit,
        )
        self.shelf.open()

    def make(self, model, checkpoint, timer):
        self.made.append(model)
        if model in self.broken:
            raise EngineLoadError(f"{model}: broken")
        assert checkpoint.config.vocabulary == support.VOCABULARY
        return []

    def admit(self, held, name, weights):
        assert weights.rank == 5
        gone = []
        if len(held) == self.most:
            gone = [each for each in held if each not in self.busy][:1]
            if not gone:
                return [name]
            held.remove(gone[0])
        held.append(name)
        return gone

    def turn(self, *wanted):
        """One turn, after what is being read has been read."""
        for future in [*self.shelf._loading.values(), *self.shelf._reading.values()]:
            future.exception(timeout=30)
        self.clock.advance(1.0)
        return self.shelf.turn(used=self.used, wanted=wanted, busy=lambda: self.busy)

    def until(self, name, *wanted, turns=20):
        """Turn until `name` may run; returns how many turns that took. What may run of the wanted runs and ends."""
        for count in range(turns):
            if name in self.shelf.runnable:
                return count
            self.turn(*(each for each in wanted if each not in self.shelf.runnable))
            self.used = set(wanted) & self.shelf.runnable
        raise AssertionError(f"{name} does not come: {self.shelf.runnable} run")


@pytest.fixture
def rig(folders):
    made = []

    def build(**options):
        made.append(Rig(folders, **options))
        return made[-1]

    yield build
    for each in made:
        each.shelf.close()


def test_those_that_fit_are_read_at_the_start_pinned_ones_first(rig):
    shelves = rig(weight_bytes=25, pinned=("c@1",))
    shelves.shelf.fill()
    assert shelves.made == ["c@1", "a@1"]
    assert shelves.shelf.runnable == {"c@1", "a@1"}
    assert shelves.shelf.configs.keys() == set(MODELS)
    with pytest.raises(EngineLoadError, match="b@1 is not in memory now"):
        shelves.shelf.loaded("b@1")
    with pytest.raises(EngineLoadError, match="d@1 is not loaded here"):
        shelves.shelf.loaded("d@1")


def test_pinned_models_that_do_not_fit_are_refused_at_the_start(rig):
    with pytest.raises(EngineLoadError, match="weight_bytes"):
        rig(weight_bytes=15, pinned=("a@1", "b@1")).shelf.fill()


def test_a_model_that_is_wanted_pushes_out_the_one_used_least_recently(rig):
    shelves = rig(weight_bytes=20, min_residency=3.0)
    shelves.shelf.fill()
    shelves.used = {"a@1"}
    shelves.turn()
    shelves.used = set()
    assert shelves.turn("c@1").away == []  # both are too young to leave
    shelves.clock.advance(3.0)
    changes = shelves.turn("c@1")
    assert changes.away == ["b@1"]
    changes = shelves.turn("c@1")
    assert (changes.present, shelves.shelf.runnable) == (["c@1"], {"a@1", "c@1"})


def test_a_busy_model_gives_way_and_leaves_when_it_is_done(rig):
    shelves = rig(models=("a@1", "b@1"), weight_bytes=10, min_residency=0.0)
    shelves.shelf.fill()
    shelves.busy = {"a@1"}
    assert shelves.turn("b@1").away == ["a@1"]  # nothing new, but what runs goes on
    assert shelves.shelf.loaded("a@1") == []
    assert shelves.turn("b@1").present == []
    shelves.busy = set()
    shelves.turn("b@1")
    with pytest.raises(EngineLoadError):
        shelves.shelf.loaded("a@1")
    assert shelves.turn("b@1").present == ["b@1"]


def test_a_model_whose_work_went_away_stops_nobody(rig):
    shelves = rig(models=("a@1", "b@1"), weight_bytes=10, min_residency=0.0)
    shelves.shelf.fill()
    shelves.busy = {"a@1"}
    assert shelves.turn("b@1").away == ["a@1"]
    assert shelves.turn().present == ["a@1"]
    assert shelves.made == ["a@1"]


@pytest.mark.parametrize("minimum", [0.0, 2.0])
def test_all_that_are_wanted_at_once_get_their_turn(rig, minimum):
    shelves = rig(weight_bytes=10, min_residency=minimum, adapters=("a+1@1", "b+1@1"), max_adapters=1)
    shelves.shelf.fill()
    wanted = ("c@1", "b+1@1", "b@1", "a+1@1", "a@1")
    waits = [shelves.until(name, *wanted, turns=60) for name in (*wanted, *wanted)]
    assert max(waits) < 30


def test_a_model_that_cannot_be_read_fails_alone_and_takes_no_room(rig):
    shelves = rig(weight_bytes=20, min_residency=0.0, broken=("c@1",))
    shelves.shelf.fill()
    assert shelves.turn("c@1").failed == {}
    assert shelves.turn("c@1").failed == {"c@1": "c@1 cannot be loaded"}
    assert len(shelves.shelf.runnable) == 1
    assert shelves.turn("c@1").failed == {"c@1": "c@1 cannot be loaded"}
    assert shelves.made.count("c@1") == 1  # not again at once
    shelves.broken.clear()
    shelves.clock.advance(60.0)
    assert shelves.until("c@1", "c@1") <= 2


def test_a_model_larger_than_all_memory_is_refused_and_the_others_are_served(rig):
    shelves = rig(models=("a@1", "b@1"), weight_bytes=9)
    shelves.shelf.fill()
    assert shelves.made == []
    assert "needs 10 bytes" in shelves.turn("a@1").failed["a@1"]


def test_standbys_are_read_into_room_that_nobody_wants(rig):
    shelves = rig(weight_bytes=20, min_residency=0.0, standby=("b@1", "c@1"))
    shelves.shelf.fill()
    assert shelves.until("c@1", "c@1") > 0  # a or b had to leave
    assert "a@1" not in shelves.shelf.runnable
    shelves.turn()
    assert shelves.shelf.runnable == {"b@1", "c@1"}


def test_adapters_are_read_when_they_are_first_asked_for(rig):
    shelves = rig(adapters=("a+1@1", "b+1@1"))
    shelves.shelf.fill()
    assert shelves.shelf.runnable == set(MODELS)
    with pytest.raises(EngineLoadError, match=r"a\+1@1 is not in memory now"):
        shelves.shelf.loaded("a+1@1")
    assert shelves.turn("a+1@1").present == []
    assert shelves.turn("a+1@1").present == ["a+1@1"]
    assert shelves.shelf.loaded("a+1@1") is shelves.shelf.loaded("a@1")


def test_an_idle_adapter_leaves_at_once_when_it_has_run_and_not_before(rig):
    shelves = rig(adapters=("a+1@1", "a+2@1"), max_adapters=1, min_residency=50.0)
    shelves.shelf.fill()
    shelves.turn("a+1@1")
    shelves.turn("a+1@1", "a+2@1")
    for _ in range(3):
        shelves.turn("a+2@1")
        assert "a+1@1" in shelves.shelf.runnable
    shelves.used = {"a+1@1"}
    assert shelves.turn("a+2@1").away == ["a+1@1"]
    assert shelves.turn("a+2@1").present == ["a+2@1"]


def test_a_busy_adapter_gives_way_after_its_minimum_residency(rig):
    shelves = rig(adapters=("a+1@1", "a+2@1"), max_adapters=1, min_residency=5.0)
    shelves.shelf.fill()
    shelves.turn("a+1@1")
    shelves.turn()
    shelves.busy = shelves.used = {"a+1@1"}
    for _ in range(4):
        assert shelves.turn("a+2@1").away == []
    assert shelves.turn("a+2@1").away == ["a+1@1"]
    assert shelves.turn("a+2@1").present == []  # what runs goes on
    assert shelves.shelf._reading == {}  # and nothing is read in vain
    shelves.busy, shelves.used = set(), set()
    shelves.turn("a+2@1")
    assert shelves.turn("a+2@1").present == ["a+2@1"]


def test_adapters_leave_with_their_model(rig):
    shelves = rig(models=("a@1", "b@1"), weight_bytes=10, min_residency=0.0, adapters=("a+1@1",))
    shelves.shelf.fill()
    shelves.until("a+1@1", "a+1@1")
    shelves.used = {"a+1@1"}
    assert shelves.turn("b@1").away == ["a+1@1", "a@1"]
    shelves.until("b@1", "b@1")
    assert shelves.until("a+1@1", "a+1@1") > 0


def test_an_adapter_with_a_changed_file_fails_alone(folders, tmp_path):
    shutil.copytree(folders / "a+1@1", tmp_path / "a+1@1")
    shutil.copytree(folders / "a@1", tmp_path / "a@1")
    shelves = Rig(tmp_path, models=("a@1",), adapters=("a+1@1",))
    shelves.shelf.fill()
    weights = tmp_path / "a+1@1" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    shelves.turn("a+1@1")
    assert shelves.turn("a+1@1").failed == {"a+1@1": "a+1@1 cannot be loaded"}
    assert shelves.shelf.runnable == {"a@1"}
    shelves.shelf.close()


def test_an_adapter_of_an_unknown_model_is_refused_at_the_start(folders):
    with pytest.raises(EngineLoadError, match=r"a\+1@1 needs a@1, which is not configured"):
        Rig(folders, models=("b@1",), adapters=("a+1@1",))


def test_sequences_of_a_broken_adapter_fail_and_those_of_its_model_do_not(folders, tmp_path):
    shutil.copytree(folders / "a+1@1", tmp_path / "a+1@1")
    (tmp_path / "a+1@1" / "adapter_model.safetensors").unlink()
    source = AdapterSource(base="a@1", folder=tmp_path / "a+1@1")
    core = support.make_core({"a@1": folders / "a@1"}, adapters={"a+1@1": source})
    asked = [support.request(1, [5, 6], model="a+1@1"), support.request(2, [5, 6], model="a@1")]
    collected = support.run(core, asked)
    assert collected.finish.keys() == {1, 2}
    assert collected.finish[1] == FinishReason.ERROR
    assert collected.finish[2] != FinishReason.ERROR
    assert "a+1@1 cannot be loaded" in collected.errors[1]
    with pytest.raises(EngineLoadError):
        support.embed(core, [5, 6], "a+1@1")
