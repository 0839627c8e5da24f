"""A version's files: what is read was hashed, and nothing is opened twice."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from weir.registry.v1 import registry_pb2 as pb

from libs.versions.errors import LoadError as OtherFileError
from libs.versions.manifest import ManifestFile, compare
from services.predictor.port import LoadError


@dataclass(frozen=True, slots=True)
class Files:
    """Between a check of a path and a later opening of it, whoever may write to the folder can put another file there,
    or write into the one that was checked. So each is read whole, once, and the bytes in memory are what is hashed,
    parsed and then let go: formats get contents, never paths.

    :ivar listed: by path, what the registry's record says of each. None: nobody says, and nothing is checked.
    """

    folder: Path
    listed: Mapping[str, ManifestFile] | None = None

    @classmethod
    def of(cls, version: pb.ModelVersion, folder: Path) -> Files:
        """Those of a registered version, in the folder of the weight cache."""
        listed = (ManifestFile(each.path, each.bytes, each.sha256.lower()) for each in version.artifacts)
        return cls(folder, {file.path: file for file in listed})

    def read(self, name: str) -> bytes:
        """The content of a file.

        :raises LoadError: it is missing, cannot be read, lies elsewhere or is not what is listed.
        """
        path = self.folder / name
        file = self.listed.get(name) if self.listed is not None else None
        if (file is None and self.listed is not None) or not path.resolve().is_relative_to(self.folder.resolve()):
            raise LoadError(f"there is no artifact {name!r}")
        try:
            # Without waiting: what is no file (a pipe) might keep the loading thread for ever.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as opened:
                if file is not None:
                    compare(Path(name), file, os.fstat(opened.fileno()).st_size)  # before a byte is read
                content = opened.readall()
            if file is not None:
                compare(Path(name), file, len(content), hashlib.sha256(content).hexdigest())
        except OSError as error:
            raise LoadError(f"there is no artifact {name!r}: {error.strerror}") from None
        except OtherFileError as error:
            raise LoadError(str(error)) from None
        return content

    def beside(self, name: str, other: str) -> bytes:
        """The content of another file, by its path from where the first one lies.

        :raises LoadError: as `read`.
        """
        return self.read(str(PurePosixPath(name).parent / other))
