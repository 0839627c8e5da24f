"""B3: a text that reads as what the rules look for is found, however its characters are written."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.safety_filter import Pack, Rule, compile_pack, rules_from_json
from libs.safety_filter.view import MAX_IGNORED
from loadtest.bench_safety import LANGUAGES, caught
from loadtest.evasions import IGNORED, corpus, ways

PACKS = Path("services/safety/packs")


@cache
def shipped(name: str) -> Pack:
    return compile_pack(name, 0, rules_from_json((PACKS / f"{name}.json").read_text()))


@pytest.mark.parametrize("name", ["default", "strict"])
def test_b3_evasions_are_caught_in_inputs_and_outputs_however_they_are_cut(name: str) -> None:
    results = [(one.way, one.category, all(caught(shipped(name), one, every=5))) for one in corpus()]
    missed = [(way, category) for way, category, found in results if not found]
    assert len(missed) < len(results) / 100, missed


@pytest.mark.parametrize("way", ["cyrillic", "escaped", "escaped bold", "composed", "lower case", "dash 2011"])
def test_b3_each_kind_of_disguise_is_seen_through(way: str) -> None:
    for one in corpus():
        if one.way == way:
            assert all(caught(shipped("default"), one, every=1)), one


@pytest.mark.parametrize("sign", IGNORED)
def test_b3_ignored_characters_are_passed_over_without_limit_in_inputs(sign: str) -> None:
    for count in (1, MAX_IGNORED + 1, 5000):
        text = f"say FOR{sign * count}BIDDEN-DEMO-PHRASE"
        assert shipped("default").check_input([text]).action == "block"


def test_b3_more_ignored_characters_than_an_output_may_have_in_a_match_are_a_block() -> None:
    stream = shipped("default").open_output()
    assert stream.feed("see 4111 1111") == "see "
    assert stream.feed("\u200b" * (MAX_IGNORED + 1)) == ""
    assert stream.blocked


def test_b3_what_is_replaced_covers_every_character_that_a_match_came_from() -> None:
    hidden = "4\u200b111\u0301 \\u0031111 １１１１ 11ⅼ1".replace("ⅼ", "1")
    [text] = shipped("default").check_input([f"a {hidden} b"]).texts
    assert text == "a [card number removed] b"


def test_b3_json_has_escapes_that_plain_text_has_not() -> None:
    key = "wk_abcdEFGH12345678xyz"
    stream = shipped("default").open_output(json=True)
    assert "xyz" not in stream.feed(f'{{"a": "see\\n{key}"}}') + stream.finish()
    # Plain text has the letter there: the key is no word of its own.
    assert key in shipped("default").check_output(f"C:\\n{key}").texts[0]


@pytest.mark.parametrize("text", LANGUAGES, ids=lambda text: text[:12])
def test_b3_folding_finds_nothing_in_the_languages_of_the_world(text: str) -> None:
    for name in ("default", "strict"):
        assert shipped(name).check_input([text]).findings == ()
        assert shipped(name).check_output(text).texts == (text,)


def test_b3_patterns_beyond_ascii_are_folded_as_texts_are() -> None:
    rules = [Rule("r", "c", pattern, "block", "both") for pattern in ["(?i)запрещено"]]
    pack = compile_pack("ru", 1, rules)
    for text in ("ЗАПРЕЩЕНО", "за\u200bпрещено", "\\u0437апрещено", "запpещeнo"):
        assert pack.check_input([text]).action == "block"
    assert pack.check_input(["разрешено"]).action == ""


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_b3_ways_can_be_mixed(data: st.DataObject) -> None:
    mixable = [change for name, change in ways().items() if "everywhere" in name or name in ("cyrillic", "greek")]
    text = "FORBIDDEN-DEMO-PHRASE"
    for change in data.draw(st.lists(st.sampled_from(mixable), max_size=3)):
        text = change(text)
    cut = data.draw(st.integers(0, len(text)))
    stream = shipped("default").open_output()
    stream.feed(text[:cut])
    stream.feed(text[cut:])
    stream.finish()
    assert stream.blocked
