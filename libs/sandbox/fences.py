"""What a process gives up for good before it runs code that nobody here wrote. Standard library alone.

Two fences of the kernel, each enough against files and networks by itself, so that a hole in one opens nothing:

- *seccomp*: a filter that lets some thirty system calls pass, those that computing needs. No opening of files, no
  socket, no new process or thread, no signal to others, no io_uring: those fail with EPERM.
- *Landlock*: a rule set without a rule: no path, no TCP port, no abstract socket, no signal out of the domain.

Limits of the operating system bound memory; nothing is written to files, and no core is dumped. A process that a fence
cannot be put around (another operating system or processor, an old kernel) is told so by `available`.

Sources: seccomp(2), landlock(7), linux/seccomp.h, linux/landlock.h, asm/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from dataclasses import dataclass

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 38, 9
_SECCOMP_SET_MODE_FILTER, _SECCOMP_GET_ACTION_AVAIL, _ALL_THREADS = 1, 2, 1
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4  # of struct seccomp_data
_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # the same on all processors
_RULESET_VERSION = 1
# How many rights over files a version knows: 13 in the first, then REFER, TRUNCATE and, in the fifth, IOCTL_DEV.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_MOST_FILE_RIGHTS = 16
_NET_SINCE, _SCOPED_SINCE = 4, 6

_PASS = (
    *("read", "write", "close", "fstat", "lseek", "mmap", "mprotect", "munmap", "mremap", "madvise", "brk"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall", "futex", "sched_yield"),
    *("nanosleep", "clock_nanosleep", "clock_gettime", "clock_getres", "gettimeofday", "getpid", "gettid"),
    *("getrandom", "rseq", "exit", "exit_group"),
)
"""System calls that pass, in the order of the numbers below."""
_PROCESSORS: dict[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (
            *(0, 1, 3, 5, 8, 9, 10, 11, 25, 28, 12, 13, 14, 15, 131, 219, 202, 24, 35, 230, 228, 229, 96, 39, 186),
            *(318, 334, 60, 231),
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(63, 64, 57, 80, 62, 222, 226, 215, 216, 233, 214, 134, 135, 139, 132, 128, 98, 124, 101, 115, 113, 114),
            *(169, 172, 178, 278, 293, 93, 94),
        ),
    ),
}
"""By machine: the architecture's number in the kernel's audit, and the numbers of `_PASS`."""


class FenceError(Exception):
    """The kernel refused a fence that it said it has."""


@dataclass(frozen=True, slots=True)
class Fences:
    """What this kernel has."""

    seccomp: bool
    landlock: int
    """Its version; 0: none."""

    @property
    def complete(self) -> bool:
        """Both are there."""
        return self.seccomp and self.landlock > 0

    def __str__(self) -> str:
        lacking = [name for name, there in (("seccomp", self.seccomp), ("Landlock", self.landlock)) if not there]
        return f"this kernel lacks {' and '.join(lacking)}" if lacking else f"seccomp, Landlock {self.landlock}"


def available() -> Fences:
    """Asks the kernel; changes nothing."""
    if sys.platform != "linux" or platform.machine() not in _PROCESSORS:
        return Fences(False, 0)
    action = ctypes.c_uint32(_ERRNO)
    seccomp = _call(_seccomp_number(), _SECCOMP_GET_ACTION_AVAIL, 0, ctypes.byref(action)) == 0
    return Fences(seccomp, max(0, _call(_CREATE_RULESET, None, 0, _RULESET_VERSION)))


def limit(memory: int) -> None:
    """Bounds this process: `memory` bytes beyond what it has, no file, no core; dies with its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        with open("/proc/self/statm", encoding="ascii") as status:
            memory += int(status.read().split()[0]) * resource.getpagesize()
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(what, (most, most))


def enclose(fences: Fences) -> None:
    """Puts the fences that there are around this process; there is no way back. It must have one thread only.

    :raises FenceError: one does not stand.
    """
    if not (fences.seccomp or fences.landlock):
        return
    if len(os.listdir("/proc/self/task")) != 1:
        raise FenceError("the process has other threads")
    if ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise FenceError("no_new_privs")
    if fences.landlock:
        _restrict(fences.landlock)
    if fences.seccomp:  # last: it lets nothing of the above pass
        _filter()


def _restrict(version: int) -> None:
    rights = (1 << _FILE_RIGHTS.get(version, _MOST_FILE_RIGHTS)) - 1
    content = struct.pack("=Q", rights)
    if version >= _NET_SINCE:
        content += struct.pack("=Q", 0b11)  # bind and connect of TCP
    if version >= _SCOPED_SINCE:
        content += struct.pack("=Q", 0b11)  # abstract Unix sockets, signals
    ruleset = _call(_CREATE_RULESET, content, len(content), 0)
    if ruleset < 0:
        raise FenceError(f"Landlock: {os.strerror(ctypes.get_errno())}")
    try:
        if _call(_RESTRICT_SELF, ruleset, 0):
            raise FenceError(f"Landlock: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(ruleset)


def _filter() -> None:
    architecture, numbers = _PROCESSORS[platform.machine()]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
        # Those of x86-64's other ABI (x32) have numbers of their own and equal none of these.
        *((_JUMP_IF_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("=HBBI", *each) for each in program)
    held = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(held)))
    if _call(_seccomp_number(), _SECCOMP_SET_MODE_FILTER, _ALL_THREADS, head):
        raise FenceError(f"seccomp: {os.strerror(ctypes.get_errno())}")


def _seccomp_number() -> int:
    return 317 if platform.machine() == "x86_64" else 277


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result: int = libc.syscall(ctypes.c_long(number), *(_wide(each) for each in arguments))
    return result


def _wide(argument: object) -> object:
    # A C variadic function takes integers as they are declared, and `int` is half of what the kernel reads.
    return ctypes.c_long(argument) if isinstance(argument, int) else argument
