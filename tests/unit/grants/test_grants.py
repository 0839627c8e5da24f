"""A grant is accepted once, by its worker, for its request, within its caps and its time; nothing else is."""

from __future__ import annotations

import hmac
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.admission.v1.admission_pb2 import Grant, SignedGrant

from libs.clock import ManualClock
from libs.errors import Reason, WeirError
from libs.grants import KEY_BYTES, GrantSigner, GrantVerifier

KEY = bytes(range(KEY_BYTES))
ASK: dict[str, Any] = {
    "request_id": "req-1",
    "model_version": "weir-fast@1",
    "prompt_tokens": 100,
    "max_output_tokens": 50,
    "choices": 2,
}


def random_bytes(seed: int = 7) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def make(clock: ManualClock, **overrides: Any) -> tuple[GrantSigner, GrantVerifier]:
    signer = GrantSigner(worker="worker-0", key_id="k1", key=KEY, clock=clock, random_bytes=random_bytes(), **overrides)
    verifier = GrantVerifier("worker-0", clock=clock)
    verifier.add_key("k1", KEY)
    return signer, verifier


def refused(verifier: GrantVerifier, signed: SignedGrant, **changes: Any) -> Reason:
    with pytest.raises(WeirError) as caught:
        verifier.verify(signed, **{**ASK, **changes})
    return caught.value.reason


def test_a_grant_is_accepted_and_carries_what_was_signed() -> None:
    signer, verifier = make(ManualClock())
    grant = verifier.verify(signer.sign(tenant="acme", kv_share=0.25, **ASK), **ASK)
    assert (grant.worker, grant.tenant, grant.request_id, grant.choices) == ("worker-0", "acme", "req-1", 2)
    assert grant.kv_share == 0.25


def test_less_than_the_caps_is_accepted() -> None:
    signer, verifier = make(ManualClock())
    smaller = {**ASK, "prompt_tokens": 1, "max_output_tokens": 1, "choices": 1}
    assert verifier.verify(signer.sign(tenant="acme", **ASK), **smaller).prompt_tokens == 100


def test_a_replay_is_refused_until_it_is_refused_as_expired() -> None:
    clock = ManualClock()
    signer, verifier = make(clock)
    signed = signer.sign(tenant="acme", **ASK)
    verifier.verify(signed, **ASK)
    assert refused(verifier, signed) is Reason.GRANT_REPLAYED
    clock.advance(4.9)
    assert refused(verifier, signed) is Reason.GRANT_REPLAYED
    clock.advance(0.2)
    assert refused(verifier, signed) is Reason.GRANT_EXPIRED


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_no_two_clocks_have_to_agree(ahead: float) -> None:
    admission, worker = ManualClock(1000.0), ManualClock(5.0, epoch=ahead)
    signer = GrantSigner(worker="worker-0", key_id="k1", key=KEY, clock=admission, random_bytes=random_bytes())
    verifier = GrantVerifier("worker-0", clock=worker)
    verifier.add_key("k1", KEY, signer.began)
    for clock in (admission, worker):
        clock.advance(100.0)
    admission.jump(ahead)  # set right, or wrong, while the session lasts
    worker.jump(-ahead)
    signed, late = (signer.sign(tenant="acme", **(ASK | {"request_id": name})) for name in ("req-1", "req-2"))
    worker.advance(4.9)
    assert verifier.verify(signed, **ASK)
    worker.advance(0.2)
    assert refused(verifier, late, request_id="req-2") is Reason.GRANT_EXPIRED


def test_a_refused_grant_is_not_used_up() -> None:
    signer, verifier = make(ManualClock())
    signed = signer.sign(tenant="acme", **ASK)
    assert refused(verifier, signed, request_id="another") is Reason.GRANT_INVALID
    assert verifier.verify(signed, **ASK)


def test_an_expired_grant_is_refused() -> None:
    clock = ManualClock()
    signer, verifier = make(clock, lifetime=2.0)
    signed = signer.sign(tenant="acme", **ASK)
    clock.advance(2.0)
    assert refused(verifier, signed) is Reason.GRANT_EXPIRED


def test_nonces_are_forgotten_when_their_grants_expire() -> None:
    clock = ManualClock()
    signer, verifier = make(clock)
    for _ in range(100):
        verifier.verify(signer.sign(tenant="acme", **ASK), **ASK)
    assert verifier.remembered == 100
    clock.advance(5.1)
    verifier.verify(signer.sign(tenant="acme", **ASK), **ASK)
    assert verifier.remembered == 1


def test_a_grant_that_lives_too_long_is_refused_so_that_memory_stays_bounded() -> None:
    signer, verifier = make(ManualClock(), lifetime=61.0)
    assert refused(verifier, signer.sign(tenant="acme", **ASK)) is Reason.GRANT_INVALID


def test_a_grant_for_another_worker_is_refused_even_under_the_same_key() -> None:
    clock = ManualClock()
    signer, _ = make(clock)
    other = GrantVerifier("worker-1", clock=clock)
    other.add_key("k1", KEY)
    assert refused(other, signer.sign(tenant="acme", **ASK)) is Reason.GRANT_INVALID


@pytest.mark.parametrize(
    "changes",
    [
        {"request_id": "req-2"},
        {"model_version": "weir-fast@2"},
        {"prompt_tokens": 101},
        {"max_output_tokens": 51},
        {"choices": 3},
        {"choices": 0},
        {"prompt_tokens": -1},
    ],
)
def test_work_outside_the_grant_is_refused(changes: dict[str, Any]) -> None:
    signer, verifier = make(ManualClock())
    assert refused(verifier, signer.sign(tenant="acme", **ASK), **changes) is Reason.GRANT_INVALID


def test_a_removed_key_is_refused_at_once_or_after_a_while() -> None:
    clock = ManualClock()
    signer, verifier = make(clock)
    verifier.remove_key("k1", after=3.0)
    assert verifier.verify(signer.sign(tenant="acme", **ASK), **ASK)
    clock.advance(3.0)
    assert refused(verifier, signer.sign(tenant="acme", **ASK)) is Reason.GRANT_INVALID
    verifier.add_key("k1", KEY)
    verifier.remove_key("k1")
    verifier.remove_key("k1")
    assert refused(verifier, signer.sign(tenant="acme", **ASK)) is Reason.GRANT_INVALID


def test_an_authentic_but_undecodable_grant_is_refused() -> None:
    _, verifier = make(ManualClock())
    data = b"\xff\xff\xff"
    signed = SignedGrant(grant=data, mac=hmac.digest(KEY, data, "sha256"), key_id="k1")
    assert refused(verifier, signed) is Reason.GRANT_INVALID


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_keys_of_another_length_are_refused(key: bytes) -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="32 bytes"):
        GrantVerifier("worker-0", clock=clock).add_key("k", key)
    with pytest.raises(ValueError, match="32 bytes"):
        GrantSigner(worker="worker-0", key_id="k", key=key, clock=clock, random_bytes=random_bytes())


@given(data=st.data())
def test_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    signer, verifier = make(ManualClock())
    signed = signer.sign(tenant="acme", **ASK)
    field = data.draw(st.sampled_from(["grant", "mac"]))
    raw = bytearray(getattr(signed, field))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << (bit % 8)
    setattr(signed, field, bytes(raw))
    assert refused(verifier, signed) is Reason.GRANT_INVALID


@given(
    changed=st.one_of(
        st.fixed_dictionaries({"nonce": st.binary(max_size=32)}),
        st.fixed_dictionaries({"worker": st.text(max_size=12)}),
        st.fixed_dictionaries({"request_id": st.text(max_size=12)}),
        st.fixed_dictionaries({"tenant": st.text(max_size=12)}),
        st.fixed_dictionaries({"prompt_tokens": st.integers(0, 2**32 - 1)}),
        st.fixed_dictionaries({"max_output_tokens": st.integers(0, 2**32 - 1)}),
        st.fixed_dictionaries({"choices": st.integers(0, 2**32 - 1)}),
    )
)
def test_any_altered_field_is_refused(changed: dict[str, Any]) -> None:
    signer, verifier = make(ManualClock())
    signed = signer.sign(tenant="acme", **ASK)
    altered = Grant.FromString(signed.grant)
    for name, value in changed.items():
        setattr(altered, name, value)
    data = altered.SerializeToString()
    if data == signed.grant:
        return
    signed.grant = data
    assert refused(verifier, signed) is Reason.GRANT_INVALID


@given(key_id=st.text(max_size=8), mac=st.binary(max_size=40))
def test_any_other_proof_is_refused(key_id: str, mac: bytes) -> None:
    signer, verifier = make(ManualClock())
    signed = signer.sign(tenant="acme", **ASK)
    if (key_id, mac) == (signed.key_id, signed.mac):
        return
    signed.key_id, signed.mac = key_id, mac
    assert refused(verifier, signed) is Reason.GRANT_INVALID


def credit_for(signed: SignedGrant, request_id: str = "req-1", tenant: str = "acme") -> SignedGrant:
    """What a gateway presents: the credit with the request that runs on it."""
    presented = SignedGrant()
    presented.CopyFrom(signed)
    presented.holder.request_id, presented.holder.tenant = request_id, tenant
    return presented


UNNAMED = {name: value for name, value in ASK.items() if name != "request_id"}


def test_a_credit_is_for_whichever_request_holds_it_once_and_for_its_own_time() -> None:
    clock = ManualClock()
    signer, verifier = make(clock)
    first, second = (signer.sign(request_id="", tenant="", lifetime=1.0, **UNNAMED) for _ in range(2))
    grant = verifier.verify(credit_for(first), **ASK)
    assert (grant.request_id, grant.tenant, grant.credit) == ("req-1", "acme", True)
    assert refused(verifier, credit_for(first, "req-2"), request_id="req-2") is Reason.GRANT_REPLAYED
    clock.advance(1.0)
    assert refused(verifier, credit_for(second)) is Reason.GRANT_EXPIRED


def test_a_credit_is_bound_to_its_caps_its_version_its_term_and_to_somebody() -> None:
    signer, verifier = make(ManualClock())
    signed = signer.sign(request_id="", tenant="", epoch=3, **UNNAMED)
    for changes in ({"prompt_tokens": 101}, {"choices": 3}, {"model_version": "other@1"}, {"request_id": "req-2"}):
        assert refused(verifier, credit_for(signed), **changes) is Reason.GRANT_INVALID
    assert refused(verifier, signed) is Reason.GRANT_INVALID
    assert refused(verifier, credit_for(signed, tenant="")) is Reason.GRANT_INVALID
    verifier.fence(4, "another")
    assert refused(verifier, credit_for(signed)) is Reason.GRANT_EXPIRED


def test_a_holder_makes_no_credit_of_another_request_s_grant() -> None:
    signer, verifier = make(ManualClock())
    signed = signer.sign(tenant="acme", **ASK)
    assert refused(verifier, credit_for(signed, "req-2", "rival"), request_id="req-2") is Reason.GRANT_INVALID
    assert verifier.verify(credit_for(signed, "req-2", "rival"), **ASK).tenant == "acme"
