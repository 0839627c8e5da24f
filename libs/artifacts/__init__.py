"""Model versions as immutable, signed, content-addressed artifacts.

    pushed = await push(folder, store, options, keys)      # files to the blob store, manifest signed
    verify(version, trust_policy, now)                     # or TrustError, which says what does not hold
    await fetch(version, store, folder, roles=…)           # files from the blob store, each byte checked

See README.md.
"""

from libs.artifacts.blobs import (
    BlobCorrupt,
    BlobError,
    BlobInfo,
    BlobNotFound,
    BlobStore,
    BlobStoreUnavailable,
    get_file,
)
from libs.artifacts.fetch import Fetched, FetchError, artifacts_of, check_blobs, fetch, read_checked
from libs.artifacts.files import FolderError, unread
from libs.artifacts.folder import FormatError, Options, describe
from libs.artifacts.local import LocalBlobStore
from libs.artifacts.manifest import (
    BLOBS,
    FOLDER_MANIFEST,
    ROLES,
    folder_manifest,
    full_name,
    manifest_bytes,
    manifest_digest,
)
from libs.artifacts.pushing import Pushed, PushError, push, upload
from libs.artifacts.roles import role_of
from libs.artifacts.signing import (
    KeyFileError,
    SigningKey,
    TrustError,
    TrustFault,
    Verified,
    ensure_key,
    key_id_of,
    make_key,
    read_key,
    sign,
    signers,
    verify,
    write_key,
)
from libs.artifacts.stores import BlobUriError, open_store
from libs.resources.namespaces import DEFAULT_NAMESPACE, namespace_of

__all__ = [
    "BLOBS",
    "DEFAULT_NAMESPACE",
    "FOLDER_MANIFEST",
    "ROLES",
    "BlobCorrupt",
    "BlobError",
    "BlobInfo",
    "BlobNotFound",
    "BlobStore",
    "BlobStoreUnavailable",
    "BlobUriError",
    "FetchError",
    "Fetched",
    "FolderError",
    "FormatError",
    "KeyFileError",
    "LocalBlobStore",
    "Options",
    "PushError",
    "Pushed",
    "SigningKey",
    "TrustError",
    "TrustFault",
    "Verified",
    "artifacts_of",
    "check_blobs",
    "describe",
    "ensure_key",
    "fetch",
    "folder_manifest",
    "full_name",
    "get_file",
    "key_id_of",
    "make_key",
    "manifest_bytes",
    "manifest_digest",
    "namespace_of",
    "open_store",
    "push",
    "read_checked",
    "read_key",
    "role_of",
    "sign",
    "signers",
    "unread",
    "upload",
    "verify",
    "write_key",
]
