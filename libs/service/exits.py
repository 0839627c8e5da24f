"""What a process's exit code says, in the words of sysexits.h; docs are in README.md.

0   it was told to stop (SIGTERM, SIGINT), and did
64  EX_USAGE: the command line makes no sense
69  EX_UNAVAILABLE: a service that it cannot start without does not answer
70  EX_SOFTWARE: it failed, or could not end in time; the log's last line says why
71  EX_OSERR: the system refused something, such as a port that is taken or a disk that is full
78  EX_CONFIG: the settings or the certificate cannot be used; another start will not help
"""

from __future__ import annotations

import os

from libs.config import CommandLineError, ConfigError
from libs.errors import Reason, WeirError


def cause(error: BaseException) -> BaseException:
    """What a task group's failure is about, where that is one thing."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def code_of(error: BaseException) -> int:
    """The exit code of a process that ends with this error."""
    match cause(error):
        case CommandLineError():
            return os.EX_USAGE
        case ConfigError():
            return os.EX_CONFIG
        case WeirError(reason=Reason.DEPENDENCY_UNAVAILABLE):
            return os.EX_UNAVAILABLE
        case OSError():
            return os.EX_OSERR
        case _:
            return os.EX_SOFTWARE
