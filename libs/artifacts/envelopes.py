"""securesystemslib's envelopes and keys, imported without boto3.

The library imports boto3 wherever it is installed, for keys that are kept by AWS. Here keys are files, and every
process that checks a signature would pay for it: 0.16 s of processor time and 12 MB. Blobs in buckets import boto3
themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _absent(name: str) -> Iterator[None]:
    """Imports of this module fail meanwhile, unless it is there already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # as importlib documents it
    try:
        yield
    finally:
        del sys.modules[name]


with _absent("boto3"):
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError
    from securesystemslib.signer import CryptoSigner, Key, SSlibKey

__all__ = ["CryptoSigner", "Envelope", "Key", "SSlibKey", "UnverifiedSignatureError", "VerificationError"]
