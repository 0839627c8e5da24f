"""The chain and its verification: whatever is changed in the files is found."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from libs.auditlog import (
    AuditFiles,
    Incoming,
    LineError,
    Report,
    load_or_create_signer,
    load_verifier,
    verify_directory,
)
from libs.auditlog.chain import ZERO, decode_entry, encode_entry, follow
from libs.auditlog.keys import PRIVATE_NAME, PUBLIC_NAME, KeyFileError
from libs.auditlog.layout import segments

Make = Callable[[Path], AuditFiles]


def record(number: int, size: int = 0) -> Incoming:
    body = {"id": f"r{number}", "request": {"tenant": "acme", "note": "x" * size}}
    return Incoming(f"r{number}", json.dumps(body, separators=(",", ":")).encode())


def files(root: Path, *, segment_bytes: int = 700) -> AuditFiles:
    return AuditFiles(
        root / "log",
        root / "checkpoints",
        sign=load_or_create_signer(root / "keys"),
        verify=load_verifier(root / "keys" / PUBLIC_NAME),
        now=lambda: "2026-01-01T00:00:00Z",
        segment_bytes=segment_bytes,
    )


def verify(root: Path, **more: object) -> Report:
    return verify_directory(
        root / "log", checkpoints=root / "checkpoints", public_key=root / "keys" / PUBLIC_NAME, **more
    )


def written(root: Path, groups: tuple[int, ...] = (1, 3, 2, 4)) -> int:
    log = files(root)
    log.open()
    number = 0
    for group in groups:
        log.commit([record(number + at) for at in range(1, group + 1)])
        number += group
    log.close()
    return number


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sample")
    written(root)
    assert len(segments(root / "log")) > 1
    return root


def test_what_was_written_verifies(sample: Path) -> None:
    report = verify(sample)
    assert report.ok
    assert (report.records, report.checkpoints, report.faults, report.notes) == (10, 5, [], [])
    assert len(report.head) == 64


def test_an_empty_or_absent_log_verifies(tmp_path: Path) -> None:
    written(tmp_path, ())
    assert verify(tmp_path) == Report(checkpoints=1)
    absent = verify_directory(
        tmp_path / "none", checkpoints=tmp_path / "none", public_key=tmp_path / "keys" / PUBLIC_NAME
    )
    assert absent == Report()


def all_lines(root: Path) -> list[bytes]:
    return [line for _, path in segments(root / "log") for line in path.read_bytes().splitlines(keepends=True)]


def with_log(root: Path, target: Path, change: Callable[[dict[Path, bytes]], None]) -> Report:
    """Copy the sample, change the files' bytes and verify."""
    contents = {
        path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"
    }
    change(contents)
    for path in target.rglob("*"):
        if path.is_file():
            path.unlink()
    for path, data in contents.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(data)
    return verify(target)


relaxed = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@relaxed
@given(data=st.data())
def test_any_changed_byte_is_found(sample: Path, tmp_path: Path, data: st.DataObject) -> None:
    names = [path.relative_to(sample) for _, path in segments(sample / "log")]
    name = data.draw(st.sampled_from([*names, Path("checkpoints/checkpoints.log")]))

    def flip(contents: dict[Path, bytes]) -> None:
        body = bytearray(contents[name])
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] ^= data.draw(st.integers(1, 255))
        contents[name] = bytes(body)

    report = with_log(sample, tmp_path, flip)
    # A newline destroyed at a checkpoint file's end only tears its last line; then the records are not vouched for.
    assert not report.ok or (name.parts[0] == "checkpoints" and report.notes)


def relaid(lines: list[bytes], contents: dict[Path, bytes]) -> None:
    """Put lines into one segment."""
    for path in [path for path in contents if path.parts[0] == "log"]:
        del contents[path]
    contents[Path("log/000000000000000001.log")] = b"".join(lines)


def test_one_long_segment_is_as_good(sample: Path, tmp_path: Path) -> None:
    assert with_log(sample, tmp_path, lambda contents: relaid(all_lines(sample), contents)).ok


@relaxed
@given(first=st.integers(0, 9), second=st.integers(0, 9))
def test_swapped_records_are_found(sample: Path, tmp_path: Path, first: int, second: int) -> None:
    lines = all_lines(sample)
    lines[first], lines[second] = lines[second], lines[first]
    assert with_log(sample, tmp_path, lambda contents: relaid(lines, contents)).ok == (first == second)


@relaxed
@given(start=st.integers(0, 9), count=st.integers(1, 10))
@example(start=9, count=1)
@example(start=0, count=10)
def test_removed_records_are_found(sample: Path, tmp_path: Path, start: int, count: int) -> None:
    lines = all_lines(sample)
    del lines[start : start + count]
    report = with_log(sample, tmp_path, lambda contents: relaid(lines, contents))
    assert not report.ok
    assert report.records == start


def test_a_rewritten_chain_is_found_by_its_checkpoints(sample: Path, tmp_path: Path) -> None:
    """Somebody with the log but without the key changes a record and computes every hash anew."""
    entries = list(follow(all_lines(sample)))
    prev, lines = ZERO, []
    for entry in entries:
        changed = entry.record.replace(b"acme", b"evil") if entry.sequence == 5 else entry.record
        prev, line = encode_entry(prev, entry.sequence, changed)
        lines.append(line)
    report = with_log(sample, tmp_path, lambda contents: relaid(lines, contents))
    assert report.faults == [
        "record 6 is not the one that was checkpointed",
        "record 10 is not the one that was checkpointed",
    ]


def test_checkpoints_of_another_key_are_refused(sample: Path, tmp_path: Path) -> None:
    def forge(contents: dict[Path, bytes]) -> None:
        forger = files(tmp_path / "forged")
        forger.open()
        forger._sign = Ed25519PrivateKey.generate().sign
        forger.commit([record(1)])
        forger.close()
        forged = (tmp_path / "forged" / "checkpoints" / "checkpoints.log").read_bytes().splitlines(keepends=True)
        contents[Path("checkpoints/checkpoints.log")] += forged[-1]

    target = tmp_path / "target"
    report = with_log(sample, target, forge)
    assert report.faults == ["checkpoint line 6: the checkpoint of record 1 has a bad signature"]


def test_deleted_checkpoints_and_a_rollback_are_found(sample: Path, tmp_path: Path) -> None:
    def forget(contents: dict[Path, bytes]) -> None:
        del contents[Path("checkpoints/checkpoints.log")]

    assert with_log(sample, tmp_path, forget).faults == ["there are records but no checkpoint"]

    def roll_back(contents: dict[Path, bytes]) -> None:
        relaid(all_lines(sample)[:4], contents)
        lines = contents[Path("checkpoints/checkpoints.log")].splitlines(keepends=True)
        contents[Path("checkpoints/checkpoints.log")] = b"".join(lines[:2])

    # The log and its checkpoints agree; only an anchor kept elsewhere tells.
    assert with_log(sample, tmp_path, roll_back).ok
    anchor = (sample / "checkpoints" / "checkpoints.log").read_bytes().splitlines(keepends=True)[-1]
    report = verify(tmp_path, anchors=[anchor])
    assert report.faults == ["records 5 to 10 are missing or damaged: a checkpoint counts them"]


def test_a_running_writers_tail_is_left_alone(sample: Path, tmp_path: Path) -> None:
    def grow(contents: dict[Path, bytes]) -> None:
        last = max(path for path in contents if path.parts[0] == "log")
        contents[last] += b'{"hash":"half a li'

    report = with_log(sample, tmp_path, grow)
    assert report.ok
    assert "cut short" in report.notes[0]
    assert verify(tmp_path, upto=10).notes == []
    assert verify(tmp_path, upto=6).records == 6


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_is_no_line(data: bytes) -> None:
    with pytest.raises(LineError):
        decode_entry(data + b"\n")


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=4), st.integers(1, 10**15))
def test_lines_read_back(body: dict[str, str], sequence: int) -> None:
    text = json.dumps(body).encode()
    digest, line = encode_entry(ZERO, sequence, text)
    entry = decode_entry(line)
    assert (entry.sequence, entry.record, entry.prev, entry.hash) == (sequence, text, ZERO, digest)
    assert json.loads(line)["record"] == body


@pytest.mark.parametrize("text", [b"", b"[]", b'{"a":\n1}'])
def test_only_objects_on_one_line_are_records(text: bytes) -> None:
    with pytest.raises(ValueError, match="one line"):
        encode_entry(ZERO, 1, text)


def test_keys_are_private_and_stay(tmp_path: Path) -> None:
    load_or_create_signer(tmp_path)
    before = (tmp_path / PRIVATE_NAME).read_bytes()
    assert (tmp_path / PRIVATE_NAME).stat().st_mode & 0o077 == 0
    load_or_create_signer(tmp_path)
    assert (tmp_path / PRIVATE_NAME).read_bytes() == before
    (tmp_path / PUBLIC_NAME).write_text("no key")
    with pytest.raises(KeyFileError):
        load_verifier(tmp_path / PUBLIC_NAME)
