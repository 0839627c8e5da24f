"""Signed, single-use grants: what admission lets a worker run, proven by a MAC under that worker's session key.

`GrantSigner` is admission's end, `GrantVerifier` the worker's. Both are pure: clock and randomness are injected.
"""

from libs.grants.signer import KEY_BYTES, NONCE_BYTES, GrantSigner
from libs.grants.verifier import GrantVerifier

__all__ = ["KEY_BYTES", "NONCE_BYTES", "GrantSigner", "GrantVerifier"]
