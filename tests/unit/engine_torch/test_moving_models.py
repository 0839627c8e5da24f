"""Models that come and go while the torch engine runs: their memory, their budget, and what runs meanwhile."""

from __future__ import annotations

import threading

import pytest
import support_checkpoints as support
import support_oracle as oracle
from support_checkpoints import MODEL, Collected, make_core, request, run

from libs.clock import ManualClock
from services.worker.engines.port import FinishReason
from services.worker.engines.sync import Change
from services.worker.engines.torch_engine import AdapterSource

OTHER = "other@1"
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """(folder, transformers model) of a model whose blocks are twice as large."""
    folder = tmp_path_factory.mktemp("wide")
    model = support.save_checkpoint(folder, seed=3, num_hidden_layers=4)
    support.write_manifest(folder, OTHER)
    return folder, model


@pytest.fixture(scope="module")
def like(tmp_path_factory):
    """(folder, transformers model) of a model of the same sizes."""
    folder = tmp_path_factory.mktemp("like")
    model = support.save_checkpoint(folder, seed=4)
    support.write_manifest(folder, OTHER)
    return folder, model


@pytest.fixture
def moving():
    """Makes movers, and closes their cores."""
    made = []

    def make(*arguments, **settings) -> Mover:
        made.append(Mover(make_core(*arguments, **settings)))
        return made[-1]

    yield make
    for each in made:
        each.core.close()


class Mover:
    """Drives a core and waits for its loads; steps go on meanwhile."""

    def __init__(self, core) -> None:
        self.core = core
        self.collected = Collected()
        self._woken = threading.Event()

    def turn(self) -> list[Change]:
        changes = list(self.core.changes())
        if self.core.has_work():
            self.collected.take(self.core.step())
        return changes

    def until_changed(self) -> Change:
        while True:
            # A load that is ready is taken in at the next turn; without work the core is woken for that.
            if not self.core.has_work():
                self._woken.wait(0.05)
                self._woken.clear()
            if changes := self.turn():
                [change] = changes
                return change

    def load(self, model, folder) -> Change:
        self.core.bring(model, str(folder), self._woken.set)
        return self.until_changed()

    def unload(self, model) -> Change:
        self.core.take_out(model)
        return self.until_changed()

    def finish(self) -> Collected:
        while self.core.has_work():
            self.turn()
        return self.collected


def answer(mover: Mover, handle: int, model: str) -> list[int]:
    mover.core.add([request(handle, PROMPT, model=model)])
    return mover.finish().tokens[handle]


def test_an_engine_without_models_takes_its_sizes_from_the_first(moving, tiny, wide):
    mover = moving({}, kv_bytes=1 << 20)
    core = mover.core
    assert core.info.models == ()
    assert mover.load(OTHER, wide[0]).error is None
    sized = moving({OTHER: wide[0]}, kv_bytes=1 << 20).core
    assert core.info.total_blocks == sized.info.total_blocks == core.capacity().free_blocks
    assert (core.info.models, core.info.max_context) == ((OTHER,), 128)
    assert answer(mover, 1, OTHER) == support.reference(wide[1], PROMPT)
    assert mover.load(MODEL, tiny[0]).error is None
    assert answer(mover, 2, MODEL) == support.reference(tiny[1], PROMPT)


def test_wider_blocks_change_nothing_for_what_runs(moving, tiny, wide):
    mover = moving({MODEL: tiny[0]}, total_blocks=48, max_running=4, host_bytes=1 << 17, disk_bytes=1 << 17)
    core = mover.core
    whole = run(core, [request(9, [3, 4, 5], max_tokens=100, ignore_eos=True)]).tokens[9]
    # More than fit: some are swapped out, to host memory and to disk, while the blocks become wider.
    core.add(
        [request(handle, [3, 4, 5], max_tokens=100, ignore_eos=True, cache_salt=b"%d" % handle) for handle in range(6)]
    )
    for _ in range(60):
        mover.turn()
    assert core.capacity().swapped > 0
    before = core._parts.models.memory.bytes_per_block
    assert mover.load(OTHER, wide[0]).error is None
    assert core._parts.models.memory.bytes_per_block == 2 * before
    core.add([request(10, PROMPT, model=OTHER)])
    tokens = mover.finish().tokens
    assert [tokens[handle] for handle in range(6)] == [whole] * 6
    assert tokens[10] == support.reference(wide[1], PROMPT)
    core._parts.scheduler.check_integrity()


def test_divided_memory_is_not_divided_anew_under_running_models(moving, tiny, wide):
    mover = moving({MODEL: tiny[0]}, kv_bytes=1 << 18)
    change = mover.load(OTHER, wide[0])
    assert "kv_bytes was divided into blocks" in str(change.error)
    assert mover.core.info.models == (MODEL,)
    assert mover.unload(MODEL).error is None
    assert mover.load(OTHER, wide[0]).error is None
    assert answer(mover, 1, OTHER) == support.reference(wide[1], PROMPT)


def test_a_model_beyond_the_budget_is_refused_with_the_numbers(moving, tiny, like):
    mover = moving({MODEL: tiny[0]}, weight_bytes=1 << 17, pinned=(MODEL,))
    change = mover.load(OTHER, like[0])
    assert change.loaded
    assert "weight_bytes" in str(change.error)
    assert "the pinned models leave" in str(change.error)
    assert mover.core.info.models == (MODEL,)
    assert answer(mover, 1, MODEL) == support.reference(tiny[1], PROMPT)


def test_models_that_do_not_fit_together_take_turns(moving, tiny, like):
    weights = sum(each.stat().st_size for each in like[0].glob("*.safetensors"))
    clock = ManualClock()
    mover = moving({MODEL: tiny[0]}, clock, weight_bytes=weights * 3 // 2, min_residency=0.0)
    assert mover.load(OTHER, like[0]).error is None
    assert mover.core.capacity().resident == (OTHER,)
    assert answer(mover, 1, MODEL) == support.reference(tiny[1], PROMPT)
    assert answer(mover, 2, OTHER) == support.reference(like[1], PROMPT)
    assert mover.core.info.models == (MODEL, OTHER)


def test_a_damaged_model_is_refused_by_file_and_may_come_once_it_is_whole(moving, tiny, like, tmp_path):
    folder = tmp_path / "damaged"
    support.save_checkpoint(folder, seed=4)
    support.write_manifest(folder, OTHER)
    weights = next(folder.glob("*.safetensors"))
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4] + b"\xff\xff\xff\xff")
    mover = moving({MODEL: tiny[0]})
    change = mover.load(OTHER, folder)
    assert f"{weights}: its sha256 is not the manifest's" in str(change.error)
    weights.write_bytes(whole)
    assert mover.load(OTHER, folder).error is None
    assert answer(mover, 1, OTHER) == support.reference(like[1], PROMPT)


def test_weights_that_are_no_numbers_fail_the_self_test_and_leave_no_trace(moving, tiny, tmp_path):
    import torch

    folder = tmp_path / "broken"
    model = support.save_checkpoint(folder, seed=4)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] = float("nan")
    model.save_pretrained(folder)
    support.write_manifest(folder, OTHER)
    mover = moving({MODEL: tiny[0]})
    change = mover.load(OTHER, folder)
    assert "self-test failed" in str(change.error)
    assert mover.core.info.models == (MODEL,)
    assert mover.core.info.load_seconds.keys() == {MODEL}
    assert answer(mover, 1, MODEL) == support.reference(tiny[1], PROMPT)


def test_a_model_taken_out_while_it_comes_never_arrives(moving, tiny, like):
    mover = moving({MODEL: tiny[0]})
    mover.core.bring(OTHER, str(like[0]), lambda: None)
    mover.core.take_out(OTHER)
    changes = []
    while len(changes) < 2:
        changes += mover.turn()
    assert [(each.loaded, each.error is None) for each in changes] == [(True, False), (False, True)]
    assert mover.core.info.models == (MODEL,)
    assert mover.load(OTHER, like[0]).error is None
    assert answer(mover, 1, OTHER) == support.reference(like[1], PROMPT)


def test_e1_a_version_made_anew_answers_from_its_own_weights(moving, tiny, like, tmp_path):
    folder = tmp_path / "anew"
    model = support.save_checkpoint(folder, seed=5)
    support.write_manifest(folder, OTHER)
    long = [3 + index % 90 for index in range(62)]
    tags = []
    mover = moving({MODEL: tiny[0]}, host_bytes=1 << 16)
    for handle, (where, weights) in enumerate([like, (folder, model), like]):
        assert mover.load(OTHER, where).error is None
        tags.append(mover.core._parts.scheduler._names[OTHER].tag)
        mover.core.add([request(handle, long, model=OTHER)])
        assert mover.finish().tokens[handle] == support.reference(weights, long)
        assert mover.core.capacity().cached_blocks > 0
        assert mover.core.capacity().prefix_hit_total == 0
        assert mover.unload(OTHER).error is None
        assert mover.core.capacity().cached_blocks == 0, "what only it could use is kept"
    assert tags[0] == tags[2] != tags[1], "its blocks are named by its content"
    mover.core._parts.scheduler.check_integrity()


def test_a_leaving_model_finishes_what_it_was_given_waiting_and_compiling_included(moving, tiny, like):
    mover = moving({MODEL: tiny[0]}, max_running=1)
    assert mover.load(OTHER, like[0]).error is None
    mover.core.add([request(handle, PROMPT, model=OTHER) for handle in range(3)])
    change = mover.unload(OTHER)
    assert not change.loaded
    assert mover.collected.finish.keys() == {0, 1, 2}
    assert {tuple(mover.collected.tokens[handle]) for handle in range(3)} == {tuple(support.reference(like[1], PROMPT))}
    assert run(mover.core, [request(5, PROMPT, model=OTHER)]).finish[5] == FinishReason.ERROR
    assert mover.core.capacity().free_blocks == mover.core.info.total_blocks


def test_a_model_that_adapters_rest_on_stays(moving, tmp_path):
    world = oracle.World(tmp_path, prompts=1, adapted=0)
    source = AdapterSource(base="narrow@1", folder=world.folder("narrow+some@1"))
    mover = moving({"narrow@1": world.folder("narrow@1")}, adapters={"narrow+some@1": source})
    core, change = mover.core, mover.unload("narrow@1")
    assert "the adapters narrow+some@1 rest on it" in str(change.error)
    assert "narrow@1" in core.info.models
