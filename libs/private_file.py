"""Files that only this user reads, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """What is written stands under this name, mode 0600, once all of it is on the disk; until then, and when it fails,
    what was there.

    :raises OSError: the disk refuses.
    """
    # Under a name that nobody foresees: no file or link that somebody left there is written to.
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
