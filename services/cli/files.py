"""Files with resources, and values of the command line, as libs/resources/documents.py reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from libs.resources.documents import DocumentError, Place, documents, load_all
from services.cli.app import UsageError

_ENDINGS = (".yaml", ".yml", ".json")


def scalar(text: str, where: str) -> Any:
    """A value that is written on the command line.

    :raises UsageError: it is none.
    """
    with _refusing():
        return next((value for _, value in load_all(text, where)), None)


def read(paths: Sequence[str]) -> Iterator[tuple[Place, Any]]:
    """Every document of these files and folders, with its place; "-" is standard input.

    :raises UsageError: a file cannot be read, or is none.
    """
    for name in paths:
        path = Path(name)
        found = [path]
        if name != "-" and path.is_dir():
            found = sorted(each for each in path.rglob("*") if each.suffix in _ENDINGS and not each.is_dir())
        if not found:
            raise UsageError(f"{name}: no {', '.join(_ENDINGS)} in it")
        for each in found:
            with _refusing():
                yield from documents(*read_text(each))


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except DocumentError as error:
        raise UsageError(str(error)) from error


def read_text(path: Path) -> tuple[str, str]:
    """What a file says, and what to call it; "-" is standard input.

    :raises UsageError: it cannot be read.
    """
    where = "standard input" if str(path) == "-" else str(path)
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8-sig")
        # Some locales let through on standard input what is not UTF-8, as lone surrogates.
        text.encode()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{where}: {getattr(error, 'strerror', '') or 'not UTF-8'}") from error
    return text, where
