"""Runs a program on a leash: `python -I -S leash.py PARENT PROGRAM ARGUMENT…` becomes PROGRAM, which the kernel kills
when the process PARENT dies.

A program of its own and not a `preexec_fn`: that would make the supervisor fork as a whole instead of vfork, and gRPC's
threads do not survive a fork (children died with "epoll_wait error: Bad file descriptor" before they became anything).
It imports next to nothing, since every start of a child pays for it (about 10 ms).
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
SIGKILL = 9


def leashed(*words: str) -> tuple[str, ...]:
    """The command that becomes the program `words`, which ends with this process, however that ends."""
    return (sys.executable, "-I", "-S", __file__, str(os.getpid()), *words)


def end_with(parent: int) -> None:
    """This process dies with that one, its parent, from here on."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:  # it died before it could be watched
        sys.exit(1)


def main(parent: int, argv: list[str]) -> None:
    """Becomes `argv`. Exits with code 127 when that program cannot be started, as a shell does."""
    end_with(parent)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - our own argument list, no shell
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
