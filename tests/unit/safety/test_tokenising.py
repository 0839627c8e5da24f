"""Tokens in the place of personal data: the model never sees a value, its caller gets exactly that value back."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.safety_filter import Pack, PackError, Restorer, Rule, Tokens, compile_pack
from libs.safety_filter.tokens import _TOKEN

EMAIL = r"(?<![\w.+-])[\w.+-]{1,64}@(?:[A-Za-z0-9-]{1,40}\.){1,3}[A-Za-z]{2,24}(?![\w-])"


@pytest.fixture(scope="module")
def pack() -> Pack:
    return compile_pack(
        "test",
        1,
        [
            Rule("email", "pii.email", EMAIL, "tokenise", "input", "EMAIL"),
            Rule("boss", "pii.boss", "boss@", "redact", "input", "[boss]"),
            Rule("phrase", "blocked.phrase", "FORBIDDEN", "block", "both"),
        ],
    )


def tokenised(pack: Pack, *texts: str) -> tuple[tuple[str, ...], Tokens]:
    tokens = Tokens(texts)
    return pack.check_input(texts, tokens.token).texts, tokens


def restored(values: dict[str, str], pieces: list[str], *, json: bool = False) -> str:
    restorer = Restorer(values, json=json)
    longest = max((6 * 2 + len(token) for token in values), default=0)
    out = []
    for piece in pieces:
        out.append(restorer.feed(piece))
        assert restorer.held <= longest
    return "".join([*out, restorer.finish()])


def test_equal_values_have_one_token_over_all_texts(pack: Pack) -> None:
    texts, tokens = tokenised(pack, "to ann@example.com, bob@example.com", "again ann@example.com.")
    assert texts == ("to ⟦EMAIL_1⟧, ⟦EMAIL_2⟧", "again ⟦EMAIL_1⟧.")
    assert tokens.values == {"⟦EMAIL_1⟧": "ann@example.com", "⟦EMAIL_2⟧": "bob@example.com"}
    assert pack.check_input(["ann@example.com"], tokens.token).action == "tokenise"


def test_a_value_comes_back_as_it_was_written(pack: Pack) -> None:
    [text], tokens = tokenised(pack, "to a\u200bnn@ex\u0430mple.com!")
    assert text == "to ⟦EMAIL_1⟧!"
    assert restored(tokens.values, [text]) == "to a\u200bnn@ex\u0430mple.com!"


def test_a_token_that_the_user_wrote_is_given_to_nobody(pack: Pack) -> None:
    [text], tokens = tokenised(pack, "what is ⟦EMAIL_1⟧? mail ann@example.com")
    assert text == "what is ⟦EMAIL_1⟧? mail ⟦EMAIL_2⟧"
    assert restored(tokens.values, [text]) == "what is ⟦EMAIL_1⟧? mail ann@example.com"


def test_a_token_that_the_model_invents_stays_text(pack: Pack) -> None:
    _, tokens = tokenised(pack, "ann@example.com")
    invented = "⟦EMAIL_7⟧ ⟦PHONE_1⟧ ⟦EMAIL_1 ⟦EMAIL_11⟧ EMAIL_1⟧ ⟦⟦EMAIL_01⟧"
    assert restored(tokens.values, list(invented)) == invented


def test_two_requests_know_nothing_of_one_another(pack: Pack) -> None:
    _, ours = tokenised(pack, "ann@example.com")
    _, theirs = tokenised(pack, "bob@example.com")
    assert restored(ours.values, ["⟦EMAIL_1⟧"]) == "ann@example.com"
    assert restored(theirs.values, ["⟦EMAIL_1⟧"]) == "bob@example.com"
    assert restored({}, ["⟦EMAIL_1⟧"]) == "⟦EMAIL_1⟧"


def test_a_redaction_that_overlaps_is_stricter(pack: Pack) -> None:
    [text], tokens = tokenised(pack, "mail big.boss@example.com now")
    assert text == "mail [boss] now"
    assert not tokens.values


def test_a_blocked_input_stays_blocked(pack: Pack) -> None:
    assert pack.check_input(["ann@example.com FORBIDDEN"], Tokens([]).token).action == "block"


def test_values_are_escaped_in_json_and_escaped_tokens_known() -> None:
    values = {"⟦NAME_1⟧": 'A "B" \\ C\n'}
    spelt = r"\u27e6NAME_1\u27E7"
    document = '{"a": "⟦NAME_1⟧", "b": "' + spelt + '"}'
    wanted = {"a": values["⟦NAME_1⟧"], "b": values["⟦NAME_1⟧"]}
    for size in range(1, len(document) + 1):
        pieces = [document[at : at + size] for at in range(0, len(document), size)]
        assert json.loads(restored(values, pieces, json=True)) == wanted


def test_only_inputs_are_tokenised_and_by_a_label() -> None:
    for stage, label in (("both", "EMAIL"), ("output", "EMAIL"), ("input", "e-mail"), ("input", "")):
        with pytest.raises(PackError, match="label"):
            compile_pack("bad", 1, [Rule("r", "c", "a", "tokenise", stage, label)])


@given(
    st.lists(st.sampled_from(["⟦", "⟧", "EMAIL_", "1", "2", "⟦EMAIL_1⟧", "⟦EMAIL_22⟧", "\\", r"\u27e6", "u27e", "x"])),
    st.integers(1, 5),
    st.booleans(),
)
def test_pieces_do_not_matter(parts: list[str], size: int, is_json: bool) -> None:
    text = "".join(parts)
    values = {"⟦EMAIL_1⟧": "one", "⟦EMAIL_22⟧": "⟦EMAIL_1⟧"}
    whole = restored(values, [text], json=is_json)
    assert restored(values, [text[at : at + size] for at in range(0, len(text), size)], json=is_json) == whole
    if not is_json:
        assert whole == _TOKEN.sub(lambda found: values.get(found[0], found[0]), text)


def test_nothing_is_held_that_begins_no_token() -> None:
    restorer = Restorer({"⟦EMAIL_1⟧": "one"})
    assert restorer.feed("so ⟦E") == "so "
    assert restorer.feed("ND") == "⟦END"
    assert restorer.held == 0


def test_the_shipped_packs_tokenise_nothing_by_themselves() -> None:
    for path in Path("services/safety/packs").glob("*.json"):
        assert '"tokenise"' not in path.read_text()
