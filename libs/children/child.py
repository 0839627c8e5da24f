"""The process's half: what it does before anything else."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _MAPPED_BYTES = 1 << 27, 1 << 25
_OOM_SCORE = 300  # of 1000: the kernel, short of memory, takes the child before its parent


def be_a_child(parent: int) -> None:
    """End with the process `parent`, leave signals that end it to it, and be what the kernel kills first when memory is
    short.
    """
    # The parent lets its work finish first, and then says so here.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    if sys.platform == "linux":
        _keep_memory()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as score:
            value = max(_OOM_SCORE, int(score.read()))
            score.seek(0)
            score.write(str(value))
    if os.getppid() != parent:  # it died before the kernel was asked to tell
        os._exit(0)


def _keep_memory() -> None:
    """Let malloc keep what a step or a batch frees for the next one.

    The main thread's heap gives the kernel what is free at its end, and a step of a torch engine frees much: 1,000 to
    2,300 page faults per step of 32 sequences, a third of its CPU time. A thread's heap does not.
    """
    with contextlib.suppress(AttributeError):  # a libc without it has another heap
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
