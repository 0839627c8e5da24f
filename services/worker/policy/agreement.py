"""Whether a model folder is what the registry says."""

from __future__ import annotations

from collections.abc import Mapping


def disagreement(registered: Mapping[str, str], local: Mapping[str, str]) -> str:
    """The first difference between two sets of files, path to SHA-256 in hex; empty when they agree.

    Files that only the registry lists are missing here; files that only the folder lists were added.
    """
    for path in sorted(registered.keys() | local.keys()):
        if path not in local:
            return f"{path} is registered and missing here"
        if path not in registered:
            return f"{path} is here and not registered"
        if registered[path].lower() != local[path].lower():
            return f"{path} has another digest than registered"
    return ""
