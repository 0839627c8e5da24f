# ruff: noqa: E501 - a template stands in a line
"""What transformers renders is rendered character for character: the constructs that popular models' templates use."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from libs.chat_template import ChatTemplate, TemplateError, chosen
from libs.chat_template import functions as functions

compiled = pytest.importorskip("transformers.utils.chat_template_utils")._cached_compile_jinja_template

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
TURNS = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "a,b\n c"},
    {"role": "assistant", "content": "<think>\nwell\n</think>\n\nyes <b>&"},
    {"role": "user", "content": "über 😀", "extra": {"b": [1, 2.5, None], "a": "x<y"}},
]
CONSTRUCTS = {
    "a method in a loop": "{% for m in messages %}{{ m.content.replace('a', 'b') }}{% endfor %}",
    "a method in a block": "{% block b %}{% set x = 'a,b' %}{{ x.split(',')[1] }}{% endblock %}",
    "thoughts removed": "{% for m in messages %}{{ m.content.split('</think>')[-1].lstrip('\n') }}|{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{% set x = 1 %}{{ m.content | trim }}{% endgeneration %}{% endfor %}",
    "generation hides what it sets": "{% generation %}{% set x = 1 %}{% endgeneration %}{{ x is defined }}",
    "JSON": "{{ messages[3] | tojson }}{{ messages[3].extra | tojson(indent=2) }}{{ messages | tojson(sort_keys=True) }}"
    "{{ messages[3] | tojson(ensure_ascii=True) }}{{ [1, 2] | tojson(separators=(',', ':')) }}{{ [1] | tojson(indent=0) }}",
    "a format's method": "{{ '{} {name:>5} {0!r:.3}'.format('abcdef', name=7) if false else '{0}{1:03d}'.format('x', 7) }}",
    "formats": "{{ '%s-%05.1f' % ('a', 2) }}{{ '%s' | format('b') }}{{ '%(k)s' | format(k=1) }}",
    "dictionaries": "{% set d = dict(a=1, b=2) %}{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}{{ d | dictsort }}",
    "namespaces": "{% set n = namespace(x=0, seen=[]) %}{% for m in messages %}{% set n.x = n.x + 1 %}"
    "{% set n.seen = n.seen + [m.role] %}{% endfor %}{{ n.x }}{{ n.seen | join(', ') }}{{ n.nothing is defined }}",
    "loop controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ loop.index0 }}"
    "{% if loop.last or loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "loops": "{% for m in messages %}{{ loop.length }}{{ loop.first }}{{ loop.previtem.role if loop.previtem is defined }}"
    "{{ loop.nextitem.role if loop.nextitem else '-' }}{{ loop.cycle('o', 'e') }}{% else %}none{% endfor %}",
    "conditions of loops": "{% for m in messages if m.role != 'system' %}{{ m.role }}{{ loop.index }}{% endfor %}",
    "recursion": "{% for m in [[1, [2]], [3]] recursive %}{% if m is sequence %}({{ loop(m) }}){% else %}{{ m }}{% endif %}"
    "{% endfor %}",
    "macros": "{% macro say(x, y='!') %}{{ x | upper }}{{ y }}{{ caller() if caller }}{% endmacro %}{{ say('a') }}"
    "{% call say('b') %}inside{% endcall %}",
    "slices": "{{ messages[1:][0].role }}{{ messages[::-1][0].role }}{{ 'abc'[1:] }}{{ messages[-1].content[:4] }}",
    "filters": "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}"
    "{{ messages | rejectattr('extra') | list | length }}{{ [3, 1] | sort }}{{ [1, 1] | unique | list }}{{ [1, 2] | sum }}"
    "{{ messages | map('length') | list }}{{ messages | groupby('role') | map('first') | list }}{{ 'a b' | wordcount }}",
    "parts of lists": "{{ [1, 2, 3] | slice(2) | list }}{{ [1, 2, 3] | slice(2, 0) | list }}{{ range(3) | batch(2, 'x') | list }}"
    "{{ range(3) | sort(reverse=true) }}{{ range(3) | reverse | list }}{{ messages[0] | items | list }}{{ messages[0].copy() }}",
    "keys": "{{ {'a': 1, 2: 3}[2] }}{{ {1.5: 2}[1.5] }}{{ (1, 2) in {(1, 2): 3} }}{{ dict.fromkeys([1, 2], 3) }}{{ dict([('a', 1)]) }}",
    "rounding": "{{ 1.237 | round(2) }}{{ 1.21 | round(1, 'ceil') }}{{ 5 | round(-1) }}{{ 2.5 | round }}{{ 1 | round(method='x') }}",
    "padding": "{{ 'a\nb' | indent(2) }}{{ 'a\n\nb' | indent(first=true) }}{{ 'x' | center(5) }}{{ 'x'.ljust(3) }}{{ '7'.zfill(3) }}",
    "methods of strings": "{{ 'a-b'.partition('-') }}{{ 'AbC'.swapcase() }}{{ 'ß'.casefold() }}{{ 'a b'.title() }}"
    "{{ 'xax'.strip('x') }}{{ 'abcb'.rfind('b') }}{{ '1'.isnumeric() }}",
    "escapes": "{{ messages[2].content | e }}{{ 'a b' | urlencode }}{{ '<a>' | escape | length }}",
    "tests": "{{ messages[0].role in ['system', 'x'] }}{{ messages is sequence }}{{ messages[0] is mapping }}"
    "{{ nothing is none }}{{ tools is none }}{{ documents is defined }}{{ 3 is divisibleby 3 }}{{ 'a' is in 'abc' }}",
    "globals": "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{% set j = joiner(',') %}{{ j() }}{{ j() }}"
    "{{ range(2, 9, 3) | list }}",
    "numbers": "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ 3 * 'ab' }}{{ [0] * 2 }}{{ 1.5 | round | int }}{{ '5' | int + 1 }}",
    "whitespace": "  {%- if true %}\n  a\n  {%- endif %}\n  {% set x = 1 %}\n b {{- x -}} \n c",
    "refusals": "{{ raise_exception('not ' ~ messages | length) }}",
    "what fails": "{{ messages[0].content + 1 }}",
    "unknown names": "{{ nothing.at.all }}",
}


@pytest.mark.parametrize("source", CONSTRUCTS.values(), ids=CONSTRUCTS)
@pytest.mark.parametrize("length", [len(TURNS), 2])
def test_a_construct_renders_as_in_transformers(source: str, length: int) -> None:
    told = TURNS[:length]
    try:
        known = compiled(source).render(messages=told, tools=None, documents=None, add_generation_prompt=True, **NAMES)
    except Exception:  # of any kind: the template does not take this conversation
        with pytest.raises(TemplateError):
            ChatTemplate(source).render(told, NAMES)
    else:
        assert ChatTemplate(source).render(told, NAMES) == known


def test_the_date_is_todays() -> None:
    before = datetime.now(UTC).date()
    told = ChatTemplate("{{ strftime_now('%d %b %Y, %-d %A %%') }}").render([], {})
    assert told in {day.strftime("%d %b %Y, %-d %A %%") for day in (before, datetime.now(UTC).date())}


@pytest.mark.parametrize(
    ("messages", "characters"), [(1001, 60), (501, 300), (401, 400)], ids=lambda number: str(number)
)
def test_long_chats_are_not_charged_for_their_text_at_each_turn(messages: int, characters: int) -> None:
    """As Qwen3's template asks for them."""
    source = (
        "{% for m in messages %}{% set at = (messages | length - 1) - loop.index0 %}"
        "{% if at and messages | last is mapping %}{{ m.content }}{% endif %}{% endfor %}"
    )
    told = [{"role": "user", "content": "x" * characters}] * messages
    assert len(ChatTemplate(source).render(told, {})) == (messages - 1) * characters


def test_the_template_is_chosen_as_in_transformers() -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert chosen(None, {}, {}) == ""
    assert chosen(b"\xef\xbb\xbfA", {"chat_template": "C"}, {"chat_template": "O"}) == "A"
    assert chosen(None, {"chat_template": "C"}, {"chat_template": "O"}) == "C"
    assert chosen(None, {"chat_template": named}, {}) == "D"
    assert chosen(None, {}, json.loads('{"chat_template": "\\ufeffO"}')) == "O"
    for config in ({"chat_template": named[:1]}, {"chat_template": 7}):
        with pytest.raises(TemplateError):
            chosen(None, config, {})
    with pytest.raises(TemplateError, match="UTF-8"):
        chosen(b"\xff", {}, {})
