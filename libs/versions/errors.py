"""Why a version does not come to be served."""

from __future__ import annotations

from libs.versions.plan import Fault


class LoadError(Exception):
    """A version cannot be loaded here; the message names the file or the version and the reason."""


class LoaderGoneError(Exception):
    """Whoever loads versions is not there at present; the message says why."""


class RefusedError(Exception):
    """A version is not to be served; the message names it and what does not hold."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault
