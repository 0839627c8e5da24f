"""The development certificate authority: creates, checks and renews files on disk.

Layout of the folder: `ca.pem`, `ca.key`, and a `.pem` and a `.key` per identity, named by `etcd_user`. Keys are mode
0600, the folder 0700. Every file is written whole and renamed into place; a lock file serialises writers of different
processes.

`ca.pem` is what everybody trusts: the CA whose key is in `ca.key`, and while it is being replaced another one, whose
key is in `ca-next.key`. See `trust_next_ca`, `adopt_next_ca` and `distrust_former_ca`, in this order.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from libs.authority.identity import TRUST_DOMAIN, Identity, Operator, dns_name, etcd_user
from libs.pki.names import EDGE, Hosts, alternative_names, names_in

_NEXT = "ca-next"

CA_LIFE = timedelta(days=3650)
LEAF_LIFE = timedelta(days=90)
# A person's is copied about, and opens nothing once the registry binds nothing to its name.
OPERATOR_LIFE = timedelta(days=7)
CA_RENEW_BEFORE = timedelta(days=365)
# Clocks of two machines differ; a certificate that starts "now" would be refused by the slower one.
BACKDATE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Paths of one workload's TLS files, all PEM."""

    ca: str
    """The CA bundle that peers are verified against."""
    cert: str
    """The leaf certificate."""
    key: str
    """Its private key (PKCS #8, not encrypted, mode 0600)."""


def ensure_ca(directory: Path | str, *, now: Callable[[], float] = time.time) -> Path:
    """Creates the CA in `directory` if there is none that is sound and valid for another year.

    Returns the path of the CA certificate. `now` gives seconds since the epoch. Raises OSError when the folder cannot
    be written.
    """
    root = Path(directory)
    with _locked(root):
        _load_or_create_ca(root, _moment(now))
    return root / "ca.pem"


def issue(
    directory: Path | str, identity: Identity | Operator | str, *, now: Callable[[], float] = time.time
) -> CertificateFiles:
    """Issues the certificate of one identity, or keeps the one on disk while it is sound and not near its end.

    A string is short for a workload without an instance. Creates the CA when needed. Raises ValueError for a name that
    is no DNS label, OSError when files cannot be written.
    """
    return issue_all(directory, (identity,), now=now)[_subject(identity)]


def issue_all(
    directory: Path | str,
    identities: Iterable[Identity | Operator | str],
    *,
    hosts: Hosts = MappingProxyType({}),
    now: Callable[[], float] = time.time,
) -> dict[str, CertificateFiles]:
    """Issues the certificates of several identities under one lock; see `issue`. By common name (`etcd_user`)."""
    wanted = {_subject(each): Identity(each) if isinstance(each, str) else each for each in identities}
    root = Path(directory)
    moment = _moment(now)
    files: dict[str, CertificateFiles] = {}
    with _locked(root):
        ca, ca_key = _load_or_create_ca(root, moment)
        for name, identity in wanted.items():
            names = alternative_names(identity, hosts.get(name))
            if not _leaf_is_good(root, identity, names, ca, moment):
                _write_leaf(root, identity, names, ca, ca_key, moment)
            files[name] = CertificateFiles(
                ca=str(root / "ca.pem"), cert=str(root / f"{name}.pem"), key=str(root / f"{name}.key")
            )
    return files


def reissue(directory: Path | str, *, now: Callable[[], float] = time.time) -> list[str]:
    """Gives everybody who has a certificate in the folder a new one with a new key; their common names.

    Raises FileNotFoundError where there is no CA to sign them.
    """
    root = Path(directory)
    with _locked(root):
        pair = _load_ca(root)
        if pair is None:
            raise FileNotFoundError(f"no CA with its key in {root}")
        found = holders(root)
        for identity in found.values():
            _write_leaf(root, identity, names_in(root / f"{etcd_user(identity)}.pem"), *pair, _moment(now))
    return list(found)


def holders(directory: Path | str) -> dict[str, Identity | Operator]:
    """Whose certificates are in the folder, by common name. Raises ValueError for a certificate of nobody's."""
    found: dict[str, Identity | Operator] = {}
    for path in sorted(Path(directory).glob("*.pem")):
        if path.stem != "ca":
            found[path.stem] = holder(x509.load_pem_x509_certificate(path.read_bytes()))
    return found


def holder(certificate: x509.Certificate) -> Identity | Operator:
    """Who a certificate is of. Raises ValueError when it is nobody's."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    found = Identity.parse(uris[0]) or Operator.parse(uris[0]) if len(uris) == 1 else None
    if not uris and names.get_values_for_type(x509.DNSName)[:1] == [dns_name(EDGE)]:
        return Identity(EDGE)
    if found is None:
        raise ValueError(f"a certificate of nobody's: {', '.join(uris)}")
    return found


def trust_next_ca(directory: Path | str, *, now: Callable[[], float] = time.time) -> None:
    """Makes the next CA, unless there is one, and has it trusted beside the present one, which goes on signing.

    Raises FileNotFoundError where there is no CA to replace.
    """
    root = Path(directory)
    with _locked(root):
        if _load_ca(root) is None:
            raise FileNotFoundError(f"no CA with its key in {root}")
        if not (root / f"{_NEXT}.key").exists():
            certificate, key = _make_ca(_moment(now))
            # Trusted before there is a key that could sign: whatever it signs is accepted.
            _replace(root / "ca.pem", (root / "ca.pem").read_bytes() + _pem(certificate), mode=0o644)
            _replace(root / f"{_NEXT}.key", _key_pem(key), mode=0o600)


def adopt_next_ca(directory: Path | str) -> None:
    """Lets the next CA sign, once everybody trusts it. The former one stays trusted. Does nothing the second time."""
    root = Path(directory)
    with _locked(root), suppress(FileNotFoundError):
        os.replace(root / f"{_NEXT}.key", root / "ca.key")


def distrust_former_ca(directory: Path | str) -> None:
    """Has only the CA trusted that signs, once everybody shows a certificate of it.

    Raises FileNotFoundError where there is none.
    """
    root = Path(directory)
    with _locked(root):
        pair = _load_ca(root)
        if pair is None:
            raise FileNotFoundError(f"no CA with its key in {root}")
        _replace(root / "ca.pem", _pem(pair[0]), mode=0o644)


def sign_request(
    directory: Path | str, identity: Operator, request: bytes, *, now: Callable[[], float] = time.time
) -> str:
    """The certificate, PEM, of a person whose key we never see: of the request (PKCS #10, PEM) nothing but the public
    key counts. Raises ValueError for a request that its key has not signed or whose key is not on P-256, OSError.
    """
    asked = x509.load_pem_x509_csr(request)
    key = asked.public_key()
    if not asked.is_signature_valid:
        raise ValueError("the request is not signed by its key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("the request's key is not on the curve P-256")
    root, moment = Path(directory), _moment(now)
    with _locked(root):
        ca, ca_key = _load_or_create_ca(root, moment)
        return (
            _signed(identity, alternative_names(identity), key, ca, ca_key, moment)
            .public_bytes(serialization.Encoding.PEM)
            .decode()
        )


def _subject(identity: Identity | Operator | str) -> str:
    """The common name. Raises ValueError for the names of the CA's own files."""
    name = identity if isinstance(identity, str) else etcd_user(identity)
    if name in ("ca", _NEXT):
        raise ValueError(f"not a name for a certificate: {name!r}")
    return name


def _moment(now: Callable[[], float]) -> datetime:
    return datetime.fromtimestamp(now(), UTC)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(root / ".lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _load_or_create_ca(root: Path, moment: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    pair = _load_ca(root)
    if pair is not None and pair[0].not_valid_after_utc - moment > CA_RENEW_BEFORE:
        return pair
    certificate, key = _make_ca(moment)
    _write_pair(root, "ca", certificate, key)
    return certificate, key


def _load_ca(root: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """The CA that signs: of those that are trusted, the one whose key is there."""
    try:
        trusted = x509.load_pem_x509_certificates((root / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((root / "ca.key").read_bytes(), password=None)
    except (FileNotFoundError, ValueError):
        return None
    own = [each for each in trusted if each.public_key() == key.public_key()]
    return (own[0], key) if own and isinstance(key, ec.EllipticCurvePrivateKey) else None


def _make_ca(moment: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Weir development CA")])
    certificate = (
        _builder(name, name, key.public_key(), moment, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _load_pair(root: Path, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """The certificate and key of `name`; None when missing, unreadable as PEM, or not belonging together."""
    try:
        certificate = x509.load_pem_x509_certificate((root / f"{name}.pem").read_bytes())
        key = serialization.load_pem_private_key((root / f"{name}.key").read_bytes(), password=None)
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        return None
    return certificate, key


def _leaf_is_good(
    root: Path,
    identity: Identity | Operator,
    names: x509.SubjectAlternativeName,
    ca: x509.Certificate,
    moment: datetime,
) -> bool:
    pair = _load_pair(root, etcd_user(identity))
    # In the last third of its life it is renewed, so that a mesh started today still runs weeks later.
    if pair is None or pair[0].not_valid_after_utc - moment < _life(identity) / 3:
        return False
    try:
        pair[0].verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError):
        return False
    return names == pair[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def _write_leaf(
    root: Path,
    identity: Identity | Operator,
    names: x509.SubjectAlternativeName,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    moment: datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    _write_pair(root, etcd_user(identity), _signed(identity, names, key.public_key(), ca, ca_key, moment), key)


def _life(identity: Identity | Operator) -> timedelta:
    return OPERATOR_LIFE if isinstance(identity, Operator) else LEAF_LIFE


def _signed(
    identity: Identity | Operator,
    names: x509.SubjectAlternativeName,
    public_key: ec.EllipticCurvePublicKey,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    moment: datetime,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, etcd_user(identity))])
    # The edge's certificate is shown to the public and must not open doors inside the mesh: server use only. People
    # serve nothing.
    usages = [] if isinstance(identity, Operator) else [ExtendedKeyUsageOID.SERVER_AUTH]
    if identity != Identity(EDGE):
        usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    authority = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _builder(subject, ca.subject, public_key, moment, _life(identity))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(names, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, moment: datetime, life: timedelta
) -> x509.CertificateBuilder:
    full_subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, TRUST_DOMAIN), *subject])
    full_issuer = full_subject if issuer is subject else issuer
    return (
        x509.CertificateBuilder()
        .subject_name(full_subject)
        .issuer_name(full_issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - BACKDATE)
        .not_valid_after(moment + life)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _write_pair(root: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Writes key first: a reader that sees the new certificate also finds its key."""
    _replace(root / f"{name}.key", _key_pem(key), mode=0o600)
    _replace(root / f"{name}.pem", _pem(certificate), mode=0o644)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _replace(path: Path, content: bytes, *, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            os.fchmod(handle.fileno(), mode)
            handle.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
