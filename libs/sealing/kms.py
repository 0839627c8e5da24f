"""Key-encryption keys that never leave AWS KMS, by boto3. Its calls block, a few milliseconds each.

Credentials come from where AWS's own tools look for them. The context of a key goes along as KMS's encryption context,
so CloudTrail names tenant, class and month of every key that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from libs.sealing.keks import Context, KekAwayError, KekDamagedError

_FINAL = frozenset(
    {"InvalidCiphertextException", "IncorrectKeyException", "NotFoundException", "InvalidKeyUsageException"}
)
"""Answers that do not change by asking again. A key that is disabled or about to be deleted can be enabled again."""


class KmsKeks:
    """One key of KMS wraps; others unwrap what they wrapped as long as KMS has them."""

    def __init__(self, key: str, *, region: str = "", endpoint: str = "") -> None:
        """:param key: a key's id, ARN or alias.

        :param endpoint: URL of a server other than AWS's.
        :raises KekAwayError: the configuration of AWS's tools that is found makes no sense.
        """
        self.primary = key
        with _answers("KMS"):
            self._client: Any = boto3.session.Session().client(
                "kms",
                endpoint_url=endpoint or None,
                region_name=region or None,
                config=Config(retries={"mode": "standard", "total_max_attempts": 2}, connect_timeout=1, read_timeout=2),
            )

    def wrap(self, key: bytes, context: Context) -> bytes:
        """See `Keks`."""
        with _answers(self.primary):
            made = self._client.encrypt(KeyId=self.primary, Plaintext=key, EncryptionContext=dict(context))
            return bytes(made["CiphertextBlob"])

    def unwrap(self, kek: str, wrapped: bytes, context: Context) -> bytes:
        """See `Keks`."""
        with _answers(kek):
            made = self._client.decrypt(KeyId=kek, CiphertextBlob=wrapped, EncryptionContext=dict(context))
            return bytes(made["Plaintext"])

    def rotate(self) -> str:
        """KMS makes keys, not this: name another one in the settings. Its own rotation keeps the id and needs nothing
        from us."""
        return self.primary

    def retire(self) -> int:
        """Keys of KMS are deleted in KMS."""
        return 0


@contextmanager
def _answers(kek: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _FINAL:
            raise KekDamagedError(f"KMS refuses {kek}: {code}") from error
        raise KekAwayError(f"KMS refuses {kek}: {code or 'no reason'}") from error
    except (BotoCoreError, Boto3Error) as error:
        raise KekAwayError(f"KMS does not answer for {kek}: {type(error).__name__}") from error
