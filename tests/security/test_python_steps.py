"""Code of a model version against what encloses it: it computes, and reaches nothing. Attacks go around the list of
imports first, because that list is no fence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from libs.sandbox import Box, RunError, SourceError, UnsafeError, box, fences
from libs.shipped import ROOT

MEMORY = 256 << 20
REACH = "import collections\nimport numpy as np\nos = collections._sys.modules['os']\n"
"""The module `os`, which the list of imports does not give."""

needs_fences = pytest.mark.skipif(not fences.available().complete, reason=str(fences.available()))


@pytest.fixture
def enclosed() -> Iterator[list[Box]]:
    boxes: list[Box] = []
    yield boxes
    for each in boxes:
        each.close()


def opened(source: str, boxes: list[Box], seconds: float = 20.0) -> Box:
    boxes.append(Box(source, seconds=seconds, memory=MEMORY))
    return boxes[-1]


def said(source: str, boxes: list[Box]) -> str:
    """What `attempt()` of the source gives, or the name of what it raises and its errno."""
    run = (
        "\ndef run(inputs):\n"
        "    try:\n"
        "        told = repr(attempt())\n"
        "    except BaseException as error:\n"
        "        told = f'{type(error).__name__} {getattr(error, \"errno\", None)}'\n"
        "    return {'told': np.array([told.encode()], object)}\n"
    )
    return opened(REACH + source + run, boxes).run({})["told"][0].decode()


@needs_fences
@pytest.mark.parametrize(
    "attempt",
    [
        "collections._sys.modules['posix'].open('/etc/passwd', 0)",
        f"collections._sys.modules['posix'].open({str(ROOT / 'pyproject.toml')!r}, 0)",
        "collections._sys.modules['posix'].open('/tmp/weir-escape', 0o101)",
        "os.listdir('/')",
        "os.stat('/etc/passwd')",
        "os.fork()",
        "os.kill(os.getppid(), 9)",
        "os.execv('/bin/true', ['true'])",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "collections._sys.modules['_thread'].start_new_thread(print, ())",
        "os.setuid(0)",
        "os.mkfifo('/tmp/weir-escape')",
        "os.readlink('/proc/self/exe')",
        "os.chmod('/tmp', 0o777)",
        "os.pipe()",
    ],
)
def test_the_operating_system_refuses(attempt: str, enclosed: list[Box]) -> None:
    name, _, code = said(f"def attempt():\n    return {attempt}", enclosed).partition(" ")
    assert name in ("PermissionError", "RuntimeError"), (name, code)  # RuntimeError: "can't start new thread"
    assert code in ("1", "13", "None")


@needs_fences
def test_system_calls_themselves_are_refused_too(enclosed: list[Box]) -> None:
    """A socket, io_uring, ptrace, another process's memory, a namespace, a limit raised again: by their numbers."""
    numbers = {
        "x86_64": (41, 53, 425, 101, 310, 272, 302, 160, 157, 317, 435, 56, 57, 62, 234),
        "aarch64": (198, 199, 425, 117, 270, 97, 261, 164, 167, 277, 435, 220, 129, 131),
    }[os.uname().machine]
    source = f"""
ctypes = collections._sys.modules['ctypes']
libc = ctypes.CDLL(None, use_errno=True)
def attempt():
    return [libc.syscall(number, 2, 1, 0, 0, 0, 0) and ctypes.get_errno() for number in {numbers}]
"""
    assert said(source, enclosed) == repr([1] * len(numbers))


@needs_fences
def test_it_has_no_environment_and_no_descriptor_of_ours(enclosed: list[Box], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_KEY", "secret")
    read, write = os.pipe()
    os.set_inheritable(read, True)
    try:
        found = said("def attempt():\n    return sorted(os.environ)", enclosed)
        assert "WEIR_KEY" not in found
        assert "PATH" not in found
        held = said(f"def attempt():\n    return os.read({read}, 1)", enclosed)
        assert held.startswith("OSError 9")
    finally:
        os.close(read)
        os.close(write)


@needs_fences
def test_a_memory_bomb_hits_its_own_limit(enclosed: list[Box]) -> None:
    bomb = opened("import numpy as np\ndef run(inputs):\n    return {'x': np.ones(1 << 30)}", enclosed)
    with pytest.raises(RunError, match="MemoryError"):
        bomb.run({})
    grown = opened(
        "def run(inputs):\n    held = []\n    while True:\n        held.append(bytearray(1 << 20))", enclosed
    )
    with pytest.raises(RunError):
        grown.run({})


@needs_fences
def test_an_endless_loop_is_killed_and_the_next_call_answered(enclosed: list[Box]) -> None:
    source = "def run(inputs):\n    while inputs['spin'][0]:\n        pass\n    return {'done': inputs['spin']}"
    loop = opened(source, enclosed, seconds=0.5)
    first = psutil.Process(loop.pid)
    with pytest.raises(RunError, match=r"longer than 0\.5 s"):
        loop.run({"spin": np.array([1])})
    assert not first.is_running()
    assert loop.run({"spin": np.array([0])})["done"].tolist() == [0]


@needs_fences
@pytest.mark.parametrize(
    "answer",
    [
        b"\xff" * 64,
        b"\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00{}",
        b"\x00\x00\x00\x02\x7f\x00\x00\x00\x00\x00\x00\x00{}",
        b"\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00\x00"
        + b'{"arrays":[{"name":"x","dtype":"<f8","shape":[-1,8],"bytes":0}]}',
    ],
)
def test_what_it_writes_to_its_parent_itself_is_no_answer(answer: bytes, enclosed: list[Box]) -> None:
    source = f"""
def run(inputs):
    for descriptor in range(3, 1024):
        try:
            os.write(descriptor, {answer!r})
        except OSError:
            pass
    return {{}}
"""
    forger = opened(REACH + source, enclosed)
    with pytest.raises(RunError, match="no answer"):
        forger.run({})
    assert forger.pid == 0


@needs_fences
def test_nothing_that_it_says_of_what_it_was_given_comes_back_as_an_error(enclosed: list[Box]) -> None:
    source = (
        "def run(inputs):\n"
        "    words = inputs['text'][0].decode()\n"
        "    raise type(words, (Exception,), {})(words)\n"
    )  # fmt: skip
    teller = opened(source, enclosed)
    with pytest.raises(RunError) as refused:
        teller.run({"text": np.array([b"secret"], object)})
    assert str(refused.value) == "raises Exception"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import socket\ndef run(inputs): return {}", "may not import 'socket'"),
        ("def run(inputs):\n    from os import path", "may not import 'os'"),
        ("from . import fences\ndef run(inputs): return {}", r"may not import '\.'"),
        ("def run(", "is no Python"),
        ("run = 1", "defines no function"),
        ("1 / 0", "ZeroDivisionError"),
        ("(" * 5000, "is no Python"),
    ],
)
@needs_fences
def test_source_that_cannot_run_says_why(source: str, why: str) -> None:
    with pytest.raises(SourceError, match=why):
        Box(source, seconds=5.0, memory=MEMORY)


def test_where_the_kernel_has_no_fences_only_trusted_code_runs(
    monkeypatch: pytest.MonkeyPatch, enclosed: list[Box]
) -> None:
    monkeypatch.setattr(box.fences, "available", lambda: fences.Fences(False, 0))
    with pytest.raises(UnsafeError, match="this kernel lacks seccomp and Landlock"):
        Box("def run(inputs): return inputs", seconds=5.0, memory=MEMORY)


ONE_FENCE = """
import sys, os
sys.path.insert(0, sys.argv[1])
from libs.sandbox import fences
found = fences.available()
fences.enclose(fences.Fences(found.seccomp and sys.argv[2] == "seccomp", found.landlock * (sys.argv[2] == "landlock")))
try:
    os.open("/etc/passwd", os.O_RDONLY)
except PermissionError:
    os.write(1, b"refused")
"""


@needs_fences
@pytest.mark.parametrize("fence", ["seccomp", "landlock"])
def test_each_fence_alone_keeps_files_away(fence: str) -> None:
    argv = [sys.executable, "-I", "-c", ONE_FENCE, str(ROOT), fence]
    assert subprocess.run(argv, capture_output=True, check=True, timeout=30).stdout == b"refused"
