"""Keys that make an owner of whoever has them are closed and deleted by owners."""

from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.operators import Grant
from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.resources.codec import pack
from libs.resources.kind import Role
from services.registry import applying
from services.registry.admitting import Call
from services.registry.api_keys import revoked

REVOKED = Timestamp(seconds=1)
KEYS = {
    "admin": pb.ApiKey(id="admin", tenant="ops", scopes=["admin"], revoked_at=REVOKED),
    "open": pb.ApiKey(id="open", tenant="acme", scopes=["admin"]),
    "plain": pb.ApiKey(id="plain", tenant="acme", scopes=["inference"], revoked_at=REVOKED),
}
SNAPSHOT = RegistrySnapshot(revision=1, keys=KEYS, tenants={"acme": pb.Tenant(id="acme"), "ops": pb.Tenant(id="ops")})
OPERATOR = Call(Grant("key:o", frozenset({Role.OPERATOR})), 2.0, "id")
OWNER = Call(Grant("key:w", frozenset({Role.OWNER})), 2.0, "id")


def stored(key: str) -> pb.Resource:
    return pack(KEYS[key.rpartition("/")[2]])


def delete(name: str, call: Call) -> int:
    request = pb.DeleteRequest(resources=[pb.ResourceName(kind="ApiKey", name=name)])
    return len(applying.delete(SNAPSHOT, request, call, stored).writes)


def test_an_operator_neither_revokes_nor_deletes_an_owners_key() -> None:
    for act in (lambda: revoked(SNAPSHOT, "open", OPERATOR), lambda: delete("admin", OPERATOR)):
        with pytest.raises(WeirError) as caught:
            act()
        assert caught.value.reason is Reason.SCOPE_MISSING
    assert revoked(SNAPSHOT, "open", OWNER).message.HasField("revoked_at")
    assert delete("admin", OWNER) == delete("plain", OPERATOR) == 1


def test_a_key_is_revoked_before_it_is_deleted() -> None:
    with pytest.raises(WeirError, match="weir keys revoke"):
        delete("open", OWNER)
