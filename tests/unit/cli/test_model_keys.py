"""`weir models keys trust|expire|distrust` against a registry in this process."""

from __future__ import annotations

from pathlib import Path

from tests.support.operator import Operator


async def made(weir: Operator, path: Path) -> str:
    """A new key's id."""
    key_id: str = (await weir("models", "keys", "new", path, "--json")).json()["key_id"]
    return key_id


async def trusted(weir: Operator, namespace: str) -> list[str]:
    spec = (await weir("get", "trust", namespace, "--json")).json()["spec"]
    return [key["key_id"] for key in spec["keys"]]


async def test_keys_of_a_namespace_come_and_go_and_others_stay(weir: Operator, tmp_path: Path) -> None:
    one, two = await made(weir, tmp_path / "one"), await made(weir, tmp_path / "two")
    first = await weir("models", "keys", "trust", f"{tmp_path / 'one'}.pub", "--namespace", "lab")
    assert (first.code, first.out) == (0, "lab trusts 1 keys, of which 1 must sign\n"), first.err
    dry = await weir("models", "keys", "trust", f"{tmp_path / 'two'}.pub", "--namespace", "lab", "--dry-run")
    assert dry.out == "lab would trust 2 keys, of which 1 must sign\n"
    assert await trusted(weir, "lab") == [one]
    both = await weir("models", "keys", "trust", f"{tmp_path / 'two'}.pub", "--namespace", "lab", "--json")
    policy = both.json()["trust_policy"]
    assert (policy["namespace"], [key["key_id"] for key in policy["keys"]]) == ("lab", [one, two])
    assert (await weir("models", "keys", "expire", one, "--namespace", "lab")).code == 0
    gone = await weir("models", "keys", "distrust", one, "--namespace", "lab", "--reason", "it leaked")
    assert (gone.code, await trusted(weir, "lab")) == (0, [two]), gone.err
    assert "it leaked" in (await weir("history", "trust", "lab", "-o", "wide")).out


async def test_a_key_that_is_not_there_is_told_with_its_namespace(weir: Operator, tmp_path: Path) -> None:
    await made(weir, tmp_path / "one")
    assert (await weir("models", "keys", "trust", f"{tmp_path / 'one'}.pub", "--namespace", "lab")).code == 0
    refused = await weir("models", "keys", "distrust", "zz", "--namespace", "lab")
    assert (refused.code, refused.err) == (1, "error: lab trusts no key whose id begins with 'zz'\n")
