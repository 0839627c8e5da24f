"""The local weight cache: what it serves is what the manifest says, whatever happened to disk, source or process."""

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.clock import ManualClock
from libs.versions import cache_files
from libs.versions.manifest import parse_manifest, read_manifest, sha256_file
from libs.versions.weight_cache import CacheUnavailableError, WeightCache
from services.worker.engines.port import EngineLoadError
from services.worker.model_files import ModelFiles

REPOSITORY = Path(__file__).parents[3]


def make_model(folder, files, model="m@1"):
    """A model folder with `files` (path → content) and its manifest; returns the manifest."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    name, version = model.split("@")
    listed = [
        {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        for path, content in files.items()
    ]
    (folder / "manifest.json").write_text(json.dumps({"name": name, "version": version, "files": listed}))
    return read_manifest(folder, model)


def contents(folder):
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file() and each.name != "manifest.json"
    }


def objects(root):
    return {each.name for each in (root / "objects").iterdir()}


def remove(folder):
    for each in sorted(folder.rglob("*"), reverse=True):
        each.rmdir() if each.is_dir() else each.unlink()
    folder.rmdir()


FILES = {"config.json": b"{}", "weights/one.bin": b"1" * 100, "weights/two.bin": b"2" * 50}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def cache(root, clock):
    cache = WeightCache(root, 1000, clock=clock)
    yield cache
    cache.close()


@pytest.fixture
def source(tmp_path):
    return tmp_path / "source"


def fetch_and_release(cache, source, manifest, **options):
    folder = cache.fetch(source, manifest, **options)
    cache.release(folder)
    return folder


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_fetched_folder_is_a_verified_copy(root, clock, source, hard_links):
    manifest = make_model(source, FILES)
    (source / "unlisted.txt").write_text("not of the model")
    cache = WeightCache(root, 1000, clock=clock, hard_links=hard_links)
    folder = fetch_and_release(cache, source, manifest)
    assert contents(folder) == FILES
    assert read_manifest(folder, "m@1") == manifest
    ModelFiles(folder, manifest).seal()
    assert (cache.counters.hits, cache.counters.misses) == (0, 3)
    assert fetch_and_release(cache, source, manifest) == folder
    assert (cache.counters.hits, cache.counters.misses) == (3, 3)
    assert cache.used_bytes() == 152
    assert list((root / "staging").iterdir()) == []


def test_another_object_of_the_same_folder_serves_without_the_source(root, cache, source):
    manifest = make_model(source, FILES)
    fetch_and_release(cache, source, manifest)
    remove(source)
    later = WeightCache(root, 1000)
    assert later.find("m@1") == manifest
    assert contents(fetch_and_release(later, source, manifest)) == FILES
    assert later.counters.misses == 0


def test_without_source_a_missing_file_is_named_and_the_model_not_offered(root, cache, source):
    manifest = make_model(source, FILES)
    fetch_and_release(cache, source, manifest)
    remove(source)
    (root / "objects" / manifest.files[1].sha256).unlink()
    assert cache.find("m@1") is None
    with pytest.raises(EngineLoadError, match=r"one\.bin"):
        cache.fetch(source, manifest)


def test_equal_files_of_two_models_are_kept_once(root, cache, tmp_path):
    first = make_model(tmp_path / "a", FILES)
    second = make_model(tmp_path / "b", FILES | {"config.json": b"[]"}, "m@2")
    fetch_and_release(cache, tmp_path / "a", first)
    fetch_and_release(cache, tmp_path / "b", second)
    assert cache.counters.hits == 2
    assert cache.used_bytes() == 154


@pytest.mark.parametrize("damage", ["other bytes", "shorter", "gone", "other bytes, same length and time"])
def test_damage_is_repaired_from_the_source(root, clock, source, damage):
    manifest = make_model(source, FILES)
    cache = WeightCache(root, 1000, clock=clock, hard_links=False)
    folder = fetch_and_release(cache, source, manifest)
    path = folder / "weights/one.bin"
    before = path.stat()
    if damage == "gone":
        (root / "objects" / manifest.files[1].sha256).unlink()
    else:
        path.write_bytes(b"1" * 60 if damage == "shorter" else b"x" * 100)
    hidden = "time" in damage
    if hidden:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert contents(fetch_and_release(cache, source, manifest)) != FILES  # only the full check sees it
    assert contents(fetch_and_release(cache, source, manifest, full=hidden)) == FILES
    assert cache.counters.corrupted == (damage != "gone")
    assert cache.counters.misses == 4


def test_a_touched_file_is_verified_again_and_kept(cache, source):
    manifest = make_model(source, FILES)
    folder = fetch_and_release(cache, source, manifest)
    os.utime(folder / "weights/one.bin", ns=(1, 1))
    assert contents(fetch_and_release(cache, source, manifest)) == FILES
    assert (cache.counters.misses, cache.counters.corrupted) == (3, 0)


def copying_clone(writer, request, descriptor):
    """What the file system's clone does, as far as one can see it: FICLONE is not at hand on every disk."""
    writer.write(os.pread(descriptor, 1 << 20, 0))


@pytest.mark.parametrize("way", ["clone", "copy"])
def test_a_source_overwritten_in_place_does_not_matter_to_copies(root, source, monkeypatch, way):
    if way == "clone":
        monkeypatch.setattr(cache_files.fcntl, "ioctl", copying_clone)
    manifest = make_model(source, FILES)
    cache = WeightCache(root, 1000, hard_links=way == "clone")
    fetch_and_release(cache, source, manifest)
    (source / "weights/one.bin").write_bytes(b"y" * 100)
    assert contents(fetch_and_release(cache, source, manifest)) == FILES
    assert cache.counters.corrupted == 0


def test_a_source_overwritten_in_place_is_noticed_behind_links(cache, source, monkeypatch):
    def no_clone(*_):
        raise OSError("not supported")

    monkeypatch.setattr(cache_files.fcntl, "ioctl", no_clone)
    manifest = make_model(source, FILES)
    folder = fetch_and_release(cache, source, manifest)
    assert (folder / "weights/one.bin").samefile(source / "weights/one.bin")
    (source / "weights/one.bin").write_bytes(b"y" * 100)
    with pytest.raises(EngineLoadError, match=r"weights/one\.bin"):
        cache.fetch(source, manifest)
    assert cache.counters.corrupted == 1
    (source / "weights/one.bin").unlink()
    make_model(source, FILES)
    assert contents(fetch_and_release(cache, source, manifest)) == FILES


@pytest.mark.parametrize("change", [b"x" * 100, b"short"])
@pytest.mark.parametrize("hard_links", [True, False])
def test_a_wrong_source_is_refused_by_name_and_leaves_nothing(root, source, change, hard_links):
    manifest = make_model(source, FILES)
    (source / "weights/one.bin").write_bytes(change)
    cache = WeightCache(root, 1000, hard_links=hard_links)
    with pytest.raises(EngineLoadError, match=r"source/weights/one\.bin"):
        cache.fetch(source, manifest)
    assert objects(root) == set()
    assert list((root / "staging").iterdir()) == []
    make_model(source, FILES)
    assert contents(fetch_and_release(cache, source, manifest)) == FILES


def test_links_in_the_source_are_followed(cache, source, tmp_path):
    manifest = make_model(source, FILES)
    blob = tmp_path / "blob"
    (source / "config.json").rename(blob)
    (source / "config.json").symlink_to(blob)
    folder = fetch_and_release(cache, source, manifest)
    blob.unlink()
    assert contents(folder) == FILES
    assert not any(each.is_symlink() for each in folder.rglob("*"))


def test_what_does_not_belong_to_the_model_is_removed_from_its_folder(cache, source):
    manifest = make_model(source, FILES)
    folder = fetch_and_release(cache, source, manifest)
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "extra").mkdir()
    (folder / "extra" / "file").write_text("")
    (folder / "manifest.json").write_text("{}")
    fetch_and_release(cache, source, manifest)
    assert contents(folder) == FILES
    assert not (folder / "extra").exists()
    assert read_manifest(folder, "m@1") == manifest


# ---- room -----------------------------------------------------------------------------------------------------------


def several(tmp_path, count, size=300):
    """`count` models of `size` bytes each, as (source, manifest)."""
    made = []
    for number in range(count):
        folder = tmp_path / f"m{number}"
        made.append((folder, make_model(folder, {"w": bytes([number]) * size}, f"m{number}@1")))
    return made


def test_the_least_recently_used_model_leaves(root, cache, clock, tmp_path):
    models = several(tmp_path, 4)
    for model in models[:3]:
        fetch_and_release(cache, *model)
        clock.advance(1)
    fetch_and_release(cache, *models[0])
    clock.advance(1)
    fetch_and_release(cache, *models[3])
    assert cache.counters.evictions == 1
    assert [cache.find(f"m{number}@1") is not None for number in range(4)] == [True, False, True, True]
    assert cache.used_bytes() == 900
    for folder in ("records", "leases", "models", "objects", "stamps"):
        assert len(list((root / folder).iterdir())) == 3


def test_a_model_in_use_stays_and_its_user_is_not_disturbed(cache, clock, tmp_path):
    models = several(tmp_path, 5)
    held = cache.fetch(*models[0])
    assert cache.fetch(*models[0]) == held
    clock.advance(1)
    for model in models[1:]:
        fetch_and_release(cache, *model)
        clock.advance(1)
    assert contents(held) == {"w": b"\0" * 300}
    cache.release(held)
    fetch_and_release(cache, *models[1])
    assert held.exists()  # fetched twice, given back once
    cache.release(held)
    clock.advance(1)
    fetch_and_release(cache, *models[2])
    assert not held.exists()


def test_files_that_another_model_shares_stay(root, clock, tmp_path):
    cache = WeightCache(root, 250, clock=clock)
    shared = {"base": b"b" * 100}
    first = make_model(tmp_path / "a", shared | {"own": b"1" * 100}, "a@1")
    second = make_model(tmp_path / "b", shared | {"own": b"2" * 100}, "b@1")
    fetch_and_release(cache, tmp_path / "a", first)
    clock.advance(1)
    folder = fetch_and_release(cache, tmp_path / "b", second)
    assert cache.counters.evictions == 1
    assert contents(folder) == shared | {"own": b"2" * 100}
    assert cache.used_bytes() == 200


def test_a_model_beyond_the_bound_or_beside_models_in_use_is_not_taken(cache, tmp_path):
    huge = make_model(tmp_path / "huge", {"w": b"w" * 1001}, "huge@1")
    with pytest.raises(CacheUnavailableError, match="1001 bytes"):
        cache.fetch(tmp_path / "huge", huge)
    models = several(tmp_path, 4)
    for model in models[:3]:
        cache.fetch(*model)
    with pytest.raises(CacheUnavailableError, match="in use"):
        cache.fetch(*models[3])
    assert cache.counters.evictions == 0
    cache.close()
    fetch_and_release(cache, *models[3])


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheUnavailableError, match="file"):
        WeightCache(tmp_path / "file" / "cache", 10)


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["fetch", "hold", "release", "damage"])), max_size=14),
    bound=st.integers(100, 400),
)
def test_any_history_keeps_bound_leases_and_content(tmp_path_factory, steps, bound):
    folder = tmp_path_factory.mktemp("history")
    clock = ManualClock()
    cache = WeightCache(folder / "cache", bound, clock=clock, hard_links=False)
    models = []
    for number in range(5):
        files = {"shared": b"s" * 40, "own": bytes([number]) * (20 + 30 * number)}
        models.append((folder / str(number), make_model(folder / str(number), files, f"m{number}@1"), files))
    held = {}
    for number, step in steps:
        source, manifest, files = models[number]
        clock.advance(1)
        if step == "release":
            if number in held:
                cache.release(held.pop(number))
        elif step == "damage":
            for each in (folder / "cache" / "objects").iterdir():
                if each.name == manifest.files[1].sha256 and number not in held:
                    each.write_bytes(b"damage")
        else:
            try:
                found = cache.fetch(source, manifest)
            except CacheUnavailableError:
                assert manifest.total_bytes > bound or held
                continue
            assert contents(found) == files
            if step == "hold" and number not in held:
                held[number] = found
            else:
                cache.release(found)
        assert cache.used_bytes() <= bound
        for kept, path in held.items():
            assert contents(path) == models[kept][2]
    cache.close()


# ---- several processes, and their deaths ----------------------------------------------------------------------------

CHILD = """
import sys
from pathlib import Path
from libs.versions import cache_files, weight_cache
from libs.versions.manifest import read_manifest
from services.worker.model_files import ModelFiles
from services.worker.model_files import ModelFiles
root, source, model, what = sys.argv[1:]
cache = weight_cache.WeightCache(Path(root), 1000, hard_links=False)

def tell(name):
    print(name, flush=True)
    sys.stdin.read()

if what == "dies copying":
    def reads(source, buffer, real=cache_files._reads):
        for count in real(source, buffer):
            yield count
            tell("copying")
    cache_files._reads = reads
elif what == "dies publishing":
    weight_cache.fsync_folder = lambda folder: tell("publishing")
folder = cache.fetch(Path(source), read_manifest(Path(source), model))
tell(str(folder))
"""


def child(root, source, model, what):
    """A process that fetches and then waits; its first line says how far it came."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), str(source), model, what],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True,
    )  # fmt: skip
    return process, process.stdout.readline().strip()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_lease_holds_between_processes_and_ends_with_its_process(cache, root, clock, tmp_path):
    models = several(tmp_path, 4)
    process, folder = child(root, models[0][0], "m0@1", "holds")
    try:
        for model in models[1:]:
            clock.advance(1)
            fetch_and_release(cache, *model)
        assert contents(Path(folder)) == {"w": b"\0" * 300}
    finally:
        kill(process)
    # The child's clock is the machine's, far ahead of ours: give the others a later use.
    os.utime(root / "records" / models[0][1].key, ns=(0, 0))
    fetch_and_release(cache, *models[1])
    assert not Path(folder).exists()


@pytest.mark.parametrize("what", ["dies copying", "dies publishing"])
def test_a_process_killed_in_the_middle_leaves_a_cache_that_works(cache, root, tmp_path, what):
    source, manifest = several(tmp_path, 1, size=900)[0]
    process, said = child(root, source, "m0@1", what)
    try:
        assert said == what.removeprefix("dies ")
        # What is on its way in is counted, so that nobody fills its room.
        if what == "dies copying":
            assert cache.used_bytes() == 900
    finally:
        kill(process)
    assert contents(fetch_and_release(cache, source, manifest)) == {"w": b"\0" * 900}
    assert cache.used_bytes() == 900
    other = make_model(tmp_path / "other", {"w": b"o" * 800}, "other@1")
    assert contents(fetch_and_release(cache, tmp_path / "other", other)) == {"w": b"o" * 800}
    assert list((root / "staging").iterdir()) == []


def test_room_on_its_way_in_is_not_given_away(cache, root, tmp_path):
    models = several(tmp_path, 2, size=600)
    process, _ = child(root, models[0][0], "m0@1", "dies copying")
    try:
        with pytest.raises(CacheUnavailableError):
            cache.fetch(*models[1])
    finally:
        kill(process)
    fetch_and_release(cache, *models[1])


def test_threads_that_want_the_same_model_copy_it_once(root, source):
    manifest = make_model(source, FILES)
    caches = [WeightCache(root, 1000) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda cache: fetch_and_release(cache, source, manifest), caches))
    assert contents(folders[0]) == FILES
    assert sum(cache.counters.misses for cache in caches) == 3
    assert sum(cache.counters.hits for cache in caches) == 9


# ---- manifests and files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", ["", "../../x", "g" * 64, "a" * 63])
def test_a_digest_that_is_none_is_refused(digest):
    listed = [{"path": "w", "sha256": digest, "bytes": 1}]
    with pytest.raises(EngineLoadError, match="digest"):
        parse_manifest(json.dumps({"name": "m", "version": "1", "files": listed}).encode(), Path("manifest.json"))


def test_a_file_listed_twice_or_the_manifest_itself_is_refused():
    entry = {"path": "w", "sha256": "a" * 64, "bytes": 1}
    for listed, words in (([entry, entry | {"path": "./w"}], "twice"), ([entry | {"path": "manifest.json"}], "itself")):
        with pytest.raises(EngineLoadError, match=words):
            parse_manifest(json.dumps({"name": "m", "version": "1", "files": listed}).encode(), Path("manifest.json"))


@given(content=st.binary(max_size=200))
def test_hashing_by_chunks_equals_hashing_at_once(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "hashed"
    path.write_bytes(content)
    assert sha256_file(path) == hashlib.sha256(content).hexdigest()


def test_a_long_file_is_hashed_whole(tmp_path):
    content = os.urandom(3 * (1 << 20) + 17)
    (tmp_path / "long").write_bytes(content)
    assert sha256_file(tmp_path / "long") == hashlib.sha256(content).hexdigest()


def test_a_lock_that_is_shared_counts_as_held(tmp_path):
    path = tmp_path / "lock"
    assert not cache_files.is_held(path)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert cache_files.is_held(path)
    assert not cache_files.is_held(path)


def test_a_model_that_is_whole_stays_whole_while_it_is_fetched_again(tmp_path, root, monkeypatch):
    """Another worker may be loading from the folder at that moment."""
    source = tmp_path / "m"
    manifest = make_model(source, FILES)
    removed = []
    unlink = Path.unlink

    def recorded(self, missing_ok=False):
        removed.append(self)
        unlink(self, missing_ok=missing_ok)

    cache = WeightCache(root, 10_000)
    folder = cache.fetch(source, manifest)
    (folder / "stray").write_bytes(b"")
    monkeypatch.setattr(Path, "unlink", recorded)
    assert cache.fetch(source, manifest) == folder
    assert [path for path in removed if path.is_relative_to(folder)] == [folder / "stray"]
    assert contents(folder) == FILES
    cache.close()


def test_files_may_be_brought_one_by_one_and_only_those_that_are_missing(tmp_path):
    manifest = make_model(tmp_path / "source", FILES)
    cache = WeightCache(tmp_path / "cache", 10_000)
    asked = []

    def bring(file, target):
        asked.append(file.path)
        target.write_bytes(FILES[file.path])

    folder = cache.fetch(bring, manifest)
    assert sorted(asked) == sorted(FILES)
    assert contents(folder) == FILES
    other = make_model(tmp_path / "other", FILES | {"weights/two.bin": b"3" * 50}, "m@2")
    cache.fetch(lambda file, target: (asked.append(file.path), target.write_bytes(b"3" * 50)), other)
    assert asked[len(FILES) :] == ["weights/two.bin"]


@pytest.mark.parametrize("wrong", [b"2" * 49, b"3" * 50])
def test_what_is_brought_is_believed_no_more_than_a_folder(tmp_path, wrong):
    manifest = make_model(tmp_path / "source", FILES)
    cache = WeightCache(tmp_path / "cache", 10_000)
    content = FILES | {"weights/two.bin": wrong}
    with pytest.raises(EngineLoadError, match=r"two\.bin|bytes"):
        cache.fetch(lambda file, target: target.write_bytes(content[file.path]), manifest)
    assert cache.used_bytes() == 0
    assert contents(cache.fetch(tmp_path / "source", manifest)) == FILES


def test_an_error_of_whoever_brings_reaches_the_caller_as_it_is(tmp_path):
    manifest = make_model(tmp_path / "source", FILES)
    cache = WeightCache(tmp_path / "cache", 10_000)

    class AwayError(Exception):
        pass

    def bring(file, target):
        raise AwayError(file.path)

    with pytest.raises(AwayError):
        cache.fetch(bring, manifest)
    assert not list((tmp_path / "cache" / "staging").iterdir())
