"""Log lines: splitting, rotation, prefixes, tails."""

import io
import resource
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from libs.supervisor.logs import LineSplitter, LogSink, RotatingFile, log_path
from libs.supervisor.spec import LogLimits


@given(st.lists(st.binary(max_size=40)))
def test_splitter_loses_nothing_however_the_stream_is_cut(chunks: list[bytes]) -> None:
    lines: list[bytes] = []
    splitter = LineSplitter(lines.append)
    for chunk in chunks:
        splitter.feed(chunk)
    splitter.close()
    assert b"\n".join(lines) == b"".join(chunks).removesuffix(b"\n")


def test_an_endless_line_is_cut() -> None:
    lines: list[bytes] = []
    splitter = LineSplitter(lines.append)
    splitter.feed(b"x" * 200_000)
    splitter.close()
    assert max(map(len, lines)) == 64 * 1024
    assert sum(map(len, lines)) == 200_000


def test_rotation_bounds_the_files_and_keeps_whole_lines(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "a.log", max_bytes=100, backups=2)
    for number in range(100):
        file.write(b"line %03d\n" % number)
    file.close()
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == ["a.log", "a.log.1", "a.log.2"]
    assert all(f.stat().st_size <= 100 for f in files)
    newest = [*files[2].read_bytes().split(), *files[1].read_bytes().split(), *files[0].read_bytes().split()]
    assert newest[-1] == b"099"
    numbers = [int(word) for word in newest if word != b"line"]
    assert numbers == list(range(numbers[0], 100))


def test_reopening_appends_and_counts_what_is_there(tmp_path: Path) -> None:
    for _ in range(3):
        file = RotatingFile(tmp_path / "a.log", max_bytes=25, backups=1)
        file.write(b"0123456789\n")
        file.close()
    assert (tmp_path / "a.log").read_bytes() == b"0123456789\n"
    assert (tmp_path / "a.log.1").read_bytes() == b"0123456789\n" * 2


def test_sink_prefixes_one_stream_and_keeps_one_file_per_process(tmp_path: Path) -> None:
    echo = io.BytesIO()
    sink = LogSink(tmp_path, LogLimits(tail_lines=2), echo=echo)
    for name, line in [("router", b"one"), ("audit", b"two"), ("router", b"three"), ("router", b"four")]:
        sink.line(name, line)
    assert sink.tail("router") == ["three", "four"]
    assert sink.tail("nobody") == []
    sink.close()
    assert log_path(tmp_path, "router").read_text() == "one\nthree\nfour\n"
    assert log_path(tmp_path).read_text().splitlines()[1] == "audit        | two"
    assert b"\x1b[" in echo.getvalue()


def test_f7_what_a_full_disk_does_not_take_is_dropped_counted_and_told(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.symlink_to("/dev/full")
    file = RotatingFile(path, max_bytes=100, backups=1)
    for _ in range(3):
        file.write(b"lost\n")
    assert file.dropped == 3
    path.unlink()
    for _ in range(2):
        file.write(b"kept\n")
    assert path.read_bytes() == b"... 3 lines could not be written\nkept\nkept\n"
    assert file.dropped == 3
    file.close()


def test_f7_a_line_that_was_written_in_part_ends_before_the_next(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "a.log", max_bytes=1000, backups=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15, before[1]))
    try:
        file.write(b"012345678\n")
        file.write(b"012345678\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    file.write(b"after\n")
    assert file.dropped == 1
    assert (tmp_path / "a.log").read_bytes() == b"012345678\n01234\n... 1 lines could not be written\nafter\n"
    file.close()


def test_f7_a_rotation_that_fails_is_made_up_for(tmp_path: Path) -> None:
    (tmp_path / "a.log.1").mkdir()
    (tmp_path / "a.log.1" / "in the way").touch()
    file = RotatingFile(tmp_path / "a.log", max_bytes=10, backups=1)
    for number in range(3):
        file.write(b"line %d\n" % number)
    assert file.dropped == 2
    (tmp_path / "a.log.1" / "in the way").unlink()
    (tmp_path / "a.log.1").rmdir()
    file.write(b"line 3\n")
    assert (tmp_path / "a.log.1").read_bytes() == b"line 0\n"
    assert (tmp_path / "a.log").read_bytes() == b"... 2 lines could not be written\nline 3\n"
    file.close()


def test_f7_a_terminal_that_is_gone_takes_no_line_from_the_files(tmp_path: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as echo:
        sink = LogSink(tmp_path, LogLimits(), echo=echo)
        sink.line("router", b"one")
        sink.close()
    assert log_path(tmp_path, "router").read_bytes() == b"one\n"
    assert sink.dropped == 0
