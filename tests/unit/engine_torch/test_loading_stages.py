"""The staged load: what is verified, what comes from the cache, and that every stage is timed."""

from contextlib import suppress

import pytest
import support_checkpoints as support
import torch
from safetensors.torch import load_file
from support_checkpoints import MODEL

from libs.clock import ManualClock
from libs.versions.manifest import read_manifest
from libs.versions.weight_cache import WeightCache
from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.loading import STAGES, LoadReport, StageTimer, read_checkpoint, stage_files


@pytest.fixture
def folder(tiny, tmp_path):
    """A copy of the tiny checkpoint that a test may break."""
    copied = tmp_path / "model"
    copied.mkdir()
    for file in tiny[0].iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    return copied


@pytest.fixture
def cache(tmp_path):
    with_cache = WeightCache(tmp_path / "cache", 10_000_000, hard_links=False)
    yield with_cache
    with_cache.close()


def timer():
    return StageTimer(MODEL, ManualClock())


def load(folder, stages=None, **options):
    stages = stages or timer()
    return read_checkpoint(stage_files(folder, stages, **options), stages)


def test_stages_are_timed_by_name_and_in_order():
    clock = ManualClock()
    stages = StageTimer(MODEL, clock)
    for name, seconds in (("read", 2.0), ("verify", 1.0), ("read", 3.0)):
        with stages.stage(name):
            clock.advance(seconds)
    with suppress(KeyError), stages.stage("build"):
        clock.advance(4.0)
        raise KeyError
    report = stages.report()
    assert (report.model, list(report.seconds.items())) == (MODEL, [("verify", 1.0), ("read", 5.0), ("build", 4.0)])
    assert report.total == 10.0
    with stages.stage("warm_up"):
        clock.advance(1.0)
    assert report.total == 10.0  # a report does not change
    with pytest.raises(TypeError):
        report.seconds["read"] = 0.0
    assert list(STAGES) == ["verify", "cache", "read", "build", "warm_up", "self_test"]
    assert isinstance(report, LoadReport)


def test_a_stage_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="coffee"), timer().stage("coffee"):
        pass


def test_without_a_cache_the_folder_itself_is_verified_and_used(folder):
    stages = timer()
    assert load(folder, stages).files.folder == folder
    assert list(stages.report().seconds) == ["verify", "read"]
    (folder / "config.json").write_bytes((folder / "config.json").read_bytes() + b" ")
    with pytest.raises(EngineLoadError, match=r"config\.json: has"):
        load(folder)


def test_with_a_cache_its_copy_is_used_and_outlives_the_source(folder, cache):
    expected = load_file(folder / "model.safetensors")
    stages = timer()
    checkpoint = load(folder, stages, cache=cache)
    cached = checkpoint.files.folder
    assert cached != folder
    assert list(stages.report().seconds) == ["verify", "cache", "read"]
    assert all(torch.equal(checkpoint.weights[name], expected[name]) for name in expected)
    cache.release(cached)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert load(folder, cache=cache).files.folder == cached
    assert cache.counters.misses == len(read_manifest(cached, MODEL).files)
    with pytest.raises(EngineLoadError, match="no such folder for model other@1"):
        stage_files(folder, StageTimer("other@1", ManualClock()), cache=cache)


def test_a_source_damaged_before_it_was_cached_is_named(folder, cache):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(EngineLoadError, match=r"model/model\.safetensors: its sha256"):
        stage_files(folder, timer(), cache=cache)


def test_a_cache_that_is_too_small_is_passed_over(folder, tmp_path, caplog):
    small = WeightCache(tmp_path / "small", 100)
    assert load(folder, cache=small).files.folder == folder
    assert "passed over" in caplog.text
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(EngineLoadError, match=r"model\.safetensors"):
        load(folder, cache=small)


@pytest.mark.parametrize("with_cache", [True, False])
@pytest.mark.parametrize("left_out", ["config.json", "generation_config.json", "model.safetensors"])
def test_a_manifest_that_leaves_a_file_out_is_refused(folder, cache, with_cache, left_out):
    content = (folder / left_out).read_bytes()
    (folder / left_out).unlink()
    support.write_manifest(folder)
    (folder / left_out).write_bytes(content)
    with pytest.raises(EngineLoadError, match=rf"does not list {left_out}"):
        load(folder, cache=cache if with_cache else None)


def test_without_a_manifest_nothing_is_verified_where_that_is_allowed(folder, cache):
    (folder / "manifest.json").unlink()
    with pytest.raises(EngineLoadError, match=r"manifest\.json"):
        stage_files(folder, timer(), cache=cache)
    assert load(folder, cache=cache, require_manifest=False).files.folder == folder
    with pytest.raises(EngineLoadError, match="no such folder"):
        stage_files(folder / "absent", timer(), require_manifest=False)


def test_a_manifest_that_is_there_counts_although_none_is_required(folder):
    (folder / "config.json").write_text("{}")
    with pytest.raises(EngineLoadError, match=r"config\.json"):
        load(folder, require_manifest=False)
