"""Key-encryption keys by their address."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from libs.sealing.keks import FileKeks, Keks


def open_keks(address: str, *, create: bool) -> Keks:
    """The key-encryption keys at an address: a folder, or `awskms:///KEY?region=NAME&endpoint=URL` where KEY is an id,
    an ARN or `alias/NAME`.

    :param create: make the first key where a folder has none.
    :raises KekError: they cannot be used.
    :raises ValueError: the address makes no sense.
    """
    if "://" not in address:
        return FileKeks(Path(address), create=create)
    found = urlsplit(address)
    key, options = found.path.lstrip("/"), parse_qs(found.query, strict_parsing=bool(found.query))
    if found.scheme != "awskms" or found.netloc or not key or options.keys() - {"region", "endpoint"}:
        raise ValueError("kek: a folder, or awskms:///KEY?region=NAME&endpoint=URL")
    from libs.sealing.kms import KmsKeks  # boto3 takes its time to load

    return KmsKeks(key, region=options.get("region", [""])[0], endpoint=options.get("endpoint", [""])[0])
