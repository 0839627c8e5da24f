"""A9: chat templates come with model files; none of them may occupy the gateway, whatever it nests or repeats."""

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment
from jinja2.lexer import Lexer

from libs.artifacts import FolderError, Options, describe
from libs.chat_template import ChatTemplate, TemplateError, budget
from libs.chat_template.template import MAX_SOURCE, MAX_TOKENS

CONVERSATION = [{"role": "user", "content": "Hello"}]
HOARD = (
    "{{% set n = namespace(l=[]) %}}{{% for i in range(9999) %}}{{% for j in range(99) %}}"
    "{{% set n.l = [n.l, {}] %}}{{% endfor %}}{{% endfor %}}"
)
SHARED = (
    "{% set n = namespace(a=(1, 2), b=(1, 2)) %}{% for i in range(60) %}"
    "{% set n.a = (n.a, n.a) %}{% set n.b = (n.b, n.b) %}{% endfor %}"
)
BOMBS = {
    "nested loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "repetition": "{{ 'a' * 1000000000 }}",
    "repetition of repetition": "{% set a = 'a' * 4000000 %}{{ (a ~ a) * 4000 }}",
    "a list that repeats": "{{ ([0] * 1000000000) | length }}",
    "doubling": "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubling by plus": "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubling by a block": "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set x %}{{ n.s }}{{ n.s }}"
    "{% endset %}{% set n.s = x %}{% endfor %}",
    "doubling by replace": "{% set n = namespace(s='aa') %}{% for i in range(60) %}"
    "{% set n.s = n.s.replace('a', 'aa') %}{% endfor %}",
    "doubling by the filter": "{% set n = namespace(s='aa') %}{% for i in range(60) %}"
    "{% set n.s = n.s | replace('a', 'aa') %}{% endfor %}",
    "join": "{% set s = 'a' * 1000000 %}{{ ([s] * 100000) | join(s) }}",
    "join of a method": "{% set s = 'a' * 1000000 %}{{ s.join([s] * 100000) }}",
    "shared lists as text": "{% set n = namespace(l=[1]) %}{% for i in range(60) %}"
    "{% set n.l = [n.l, n.l] %}{% endfor %}"
    "{{ n.l }}",
    "shared lists as JSON": "{% set n = namespace(l=[1]) %}{% for i in range(28) %}"
    "{% set n.l = [n.l, n.l] %}{% endfor %}"
    "{{ n.l | tojson }}",
    "powers": "{{ 10 ** 10 ** 10 }}",
    "factorials": "{% set n = namespace(x=9) %}{% for i in range(9999) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "calls of macros": "".join(
        f"{{% macro m{i}() %}}{{{{ m{i + 1}() }}}}{{{{ m{i + 1}() }}}}{{% endmacro %}}" for i in range(40)
    )
    + "{% macro m40() %}{% endmacro %}{{ m0() }}",
    "a macro that calls itself": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "comparisons": "{% set a = 'a' * 4000000 %}{% set b = 'a' * 4000000 %}{% for i in range(9999) %}"
    "{% if a == b %}{% endif %}{% endfor %}",
    "searches": "{% set a = 'a' * 4000000 %}{% for i in range(9999) %}{% if 'b' in a %}{% endif %}{% endfor %}",
    "slices": "{% set a = 'a' * 4000000 %}{% for i in range(9999) %}{% if a[1:] %}{% endif %}{% endfor %}",
    "slices of lists": "{% set a = [0] * 500000 %}{% for i in range(9999) %}{% if a[1:] %}{% endif %}{% endfor %}",
    "comparisons by tests": "{% set a = 'a' * 4000000 %}{% set b = a[1:] ~ 'a' %}{% for i in range(9999) %}"
    "{% if a is eq b %}{% endif %}{% endfor %}",
    "comparisons by filters": "{% set a = 'a' * 4000000 %}{% set b = a[1:] ~ 'a' %}"
    "{{ ([a] * 9999) | select('equalto', b) | list | length }}",
    "turns of a recursive loop": "{% for a in range(1) recursive %}{% if loop.depth < 4 %}{{ loop(range(9999)) }}"
    "{% endif %}{% endfor %}",
    "branches": "{% for i in range(9999) %}{% if true %}" + "{{ i }}" * 99 + "{% endif %}{% endfor %}",
    "conditions": "{% for i in range(9999) %}{% for k in range(999) if k.x.y.z.a.b.c %}{% endfor %}{% endfor %}",
    "filters one by one": "{% for i in range(9999) %}{{ ('a' * 9999) | select | select | list | length }}{% endfor %}",
    "sums of lists": "{{ ([[0] * 999] * 9999) | sum(start=[]) | length }}",
    "parts of a text": "{% set n = namespace(l=[]) %}{% for i in range(99) %}"
    "{% set n.l = n.l + ['a ' * 2000000] | map('split') | list %}{% endfor %}",
    "letters of a text": "{% for i in range(99) %}{{ ('a' * 4000000) | list | length }}{% endfor %}",
    "searches of lists": "{% set a = [0] * 500000 %}{% for i in range(9999) %}{{ a.count(1) }}{% endfor %}",
    "indented lines": "{{ ('\\n' * 2000000) | indent(1000) | length }}",
    "indented JSON": "{% set n = namespace(l=[0] * 99999) %}{% for i in range(30) %}{% set n.l = [n.l] %}{% endfor %}"
    "{% for i in range(99) %}{{ n.l | tojson(indent=16) | length }}{% endfor %}",
    "separators": "{{ ([0] * 99999) | tojson(separators=('a' * 99999, 'b')) | length }}",
    "columns": "{{ [0] | slice(100000000) | list | length }}",
    "a name in a namespace": "{{ namespace(__class__=1) }}",
    "a namespace's class": "{{ namespace(a=1).__class__.__mro__[-1].__subclasses__() }}",
    "many dictionaries": HOARD.format("dict.fromkeys(range(9999))"),
    "copies of a dictionary": HOARD.format("dict.fromkeys(range(9999)).copy()"),
    "copies of a namespace": "{% set d = dict.fromkeys(range(999) | map('string') | list) %}"
    + HOARD.format("namespace(d)"),
    "sorted ranges": HOARD.format("range(9999) | sort"),
    "lists of one": HOARD.format("range(9999) | batch(1) | list"),
    "empty lists": HOARD.format("[1] | slice(9999) | list"),
    "sums of lists in turn": "{% set m = [0] * 400000 %}" + HOARD.format("m + [i]"),
    "many arguments": "{% set m = [0] * 400000 %}" + HOARD.format("cycler(*m)"),
    "searches of a range": HOARD.format("range(9999).count('a')"),
    "texts of wide characters": HOARD.format("('\U0001f600' ~ i) * 100000"),
    "a key that shares its parts": SHARED + "{{ {n.a: 1} }}",
    "an item that shares its parts": SHARED + "{{ messages[0][n.a] }}",
    "a search for what shares its parts": SHARED + "{{ messages[0].get(n.a) }}",
    "keys that share their parts": SHARED + "{{ dict.fromkeys([n.a]) }}",
    "pairs that share their parts": SHARED + "{{ dict([(n.a, 1)]) }}",
    "changes of what shares its parts": SHARED
    + "{% for i in range(2) %}{{ loop.changed(n.a if i else n.b) }}{% endfor %}",
    "a precision of tens": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "a precision of tens below": "{{ 5 | round(-1000000000) }}",
    "bytes of a number": "{{ (1).to_bytes(1000000000, 'big') }}",
    "a block that calls itself": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "methods": "{% set a = 'a' * 4000000 %}{% for i in range(9999) %}{% if a.upper() %}{% endif %}{% endfor %}",
}
ESCAPES = {
    "a width": "{{ 'a'.ljust(1000000000000000) }}",
    "a width of zeros": "{{ '1'.zfill(1000000000000000) }}",
    "a width in a format": "{{ '{:{}}'.format('a', 1000000000000000) }}",
    "a precision": "{{ '{:.1000000000f}'.format(1.5) }}",
    "a width beside": "{{ '%*d' % (1000000000, 1) }}",
    "a width of a date": "{{ strftime_now('%1000000000Y') }}",
    "Python's insides by a format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "evaluation": "{% autoescape 'a' * 1000000000 %}{% endautoescape %}",
    "a format": "{{ '%1000000000000000d' % 1 }}",
    "a format method": "{{ '{:>1000000000000000}'.format('a') }}",
    "a filter that pads": "{{ 'a' | center(1000000000000000) }}",
    "a filter that formats": "{{ '%1000000000000000s' | format('a') }}",
    "Python's insides": "{{ messages.__class__.__mro__[-1].__subclasses__() }}",
    "a change of the conversation": "{{ messages.append(1) }}",
    "another template": "{% include 'x' %}",
}


@pytest.mark.parametrize("source", [*BOMBS.values(), *ESCAPES.values()], ids=[*BOMBS, *ESCAPES])
def test_a9_a_template_out_of_bounds_is_stopped(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(CONVERSATION, {})


@pytest.mark.parametrize("name", [name for name, source in BOMBS.items() if "set n.l = [n.l, " in source])
def test_a9_what_it_may_keep_is_bounded(name: str) -> None:
    """A unit of work makes four bytes at most: a character of the widest kind, or half a place in a list."""
    template = ChatTemplate(BOMBS[name])
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError, match="more than is allowed"):
            template.render(CONVERSATION, {})
        assert tracemalloc.get_traced_memory()[1] < 4 * budget.WORK + (32 << 20)
    finally:
        tracemalloc.stop()


EACH = "{% for i in range(9999) %}{% for j in range(9999) %}"
DONE = "{% endfor %}{% endfor %}"
WORKING = {
    "turns": EACH + DONE,
    "branches": EACH + "{% if i == j %}a{% elif i > j %}b{% else %}c{% endif %}" + DONE,
    "assignments": "{% set n = namespace(x=0) %}" + EACH + "{% set n.x = j %}{% set y = n.x %}" + DONE,
    "outputs": EACH + "{{ i }}{{ j }}" + DONE,
    "macros": "{% macro m(x) %}{{ x }}{% endmacro %}" + EACH + "{{ m(i) }}" + DONE,
    "attributes": EACH + "{% set x = messages[0].role.upper().lower() %}" + DONE,
    "filters": EACH + "{{ 'a' | upper | trim | length }}" + DONE,
    "next turns": EACH + "{% continue %}" + DONE,
    "conditions of loops": "{% for i in range(9999) %}{% for j in range(9999) if j % 2 == 0 and j > i %}{{ j }}" + DONE,
    "sums": EACH + "{% set x = i + j * 2 - 1 %}" + DONE,
    "choices": EACH + "{% set x = (1 if i else 2) or j and not i %}" + DONE,
    "recursion": "{% macro m(x) %}{% if x %}{{ m(x - 1) }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "looks back, as Gemma's": "{% for m in messages %}{% for o in messages[:loop.index0] %}"
    "{% if o.role == 'tool' and o.name is defined %}{% endif %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("source", WORKING.values(), ids=WORKING)
def test_a9_the_budget_is_a_fraction_of_a_second_whatever_is_done(source: str) -> None:
    """By the calls that Python makes, of which it does some ten million a second: M10."""
    template, calls = ChatTemplate(source), 0

    def counted(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        with pytest.raises(TemplateError, match="more than is allowed"):
            template.render(CONVERSATION * 9999, {})
    finally:
        sys.setprofile(None)
    assert 1000 < calls < budget.WORK // 64


PROGRAMS = {
    "outputs": "{{a}}",
    "branches": "{% if a %}x{% endif %}",
    "assignments": "{% set a=1 %}",
    "macros": "{% macro m() %}{% endmacro %}",
    "blocks of training": "{% generation %}{% endgeneration %}",
    "blanks between": "   {%- set a=1 -%}   ",
}
CHAINS = {
    "branches of one": ("{% if a %}", "{% elif a %}", "{% endif %}"),
    "comparisons": ("{{ 1", "<1", " }}"),
    "parts of a text": ("{{ a", "~a", " }}"),
    "a list": ("{{ [1", ",1", "] }}"),
    "a dictionary": ("{{ {1:1", ",1:1", "} }}"),
    "sums": ("{{ 1", "+1", " }}"),
    "filters": ("{{ a", "|e", " }}"),
    "attributes": ("{{ a", ".a", " }}"),
    "calls": ("{{ a", "()", " }}"),
    "brackets": ("{{ ", "[", " }}"),
    "signs": ("{{ ", "-", "1 }}"),
    "targets": ("{% set a", ",a", " = messages %}"),
    "outputs of a loop": ("{% for a in b %}", "{{ loop.index }}", "{% endfor %}"),
}
LONG = {name: unit * (MAX_SOURCE // len(unit)) for name, unit in PROGRAMS.items()}
LONG |= {
    name: first + unit * ((MAX_SOURCE - len(first + last)) // len(unit)) + last
    for name, (first, unit, last) in CHAINS.items()
}


@pytest.mark.parametrize("source", LONG.values(), ids=LONG)
def test_a9_a_program_of_256k_characters_is_refused_before_it_is_compiled(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    wrap: Any = Lexer.wrap

    def counted(*given: Any) -> Any:
        for token in wrap(*given):
            read.append(token.type)
            yield token

    monkeypatch.setattr(Lexer, "wrap", counted)
    monkeypatch.setattr(Environment, "compile", lambda *given: pytest.fail("it was compiled"))
    with pytest.raises(TemplateError, match=r"tokens|RecursionError"):
        ChatTemplate(source)
    assert len(read) <= MAX_TOKENS + 2  # streams look one ahead


TEXTS = {
    "words": "word " * (MAX_SOURCE // 5),
    "lines": " \n" * (MAX_SOURCE // 2),
    "braces and signs": "{ % # } " * (MAX_SOURCE // 8),
    "comments": "{##}" * (MAX_SOURCE // 4),
    "a string": "{{ '" + "\\\\" * (MAX_SOURCE // 2 - 4) + "' }}",
    "blanks in a tag": "{%" + " " * (MAX_SOURCE - 30) + "if a %}{% endif %}",
}


@pytest.mark.parametrize("source", TEXTS.values(), ids=TEXTS)
def test_a9_text_of_256k_characters_is_no_program(source: str) -> None:
    assert ChatTemplate(source).render(CONVERSATION, {}) is not None
    with pytest.raises(TemplateError, match="characters"):
        ChatTemplate(source + "x" * MAX_SOURCE)


UNUSABLE = {
    "loops too deep for Python": "{% for a in b %}" * 30 + "{% endfor %}" * 30,
    "branches too deep for Python": "{% if a %}" * 120 + "{% endif %}" * 120,
    "branches too deep for Jinja": "{% if a %}" * 5000 + "{% endif %}" * 5000,
    "a number of too many digits": "{{ " + "1" * 5000 + " }}",
    "a name that Python keeps": "{{ f(__debug__=1) }}",
    "an argument twice": "{{ f(a=1, a=2) }}",
    "a parameter twice": "{% macro m(a, a) %}{% endmacro %}",
    "an end of no loop": "{% break %}",
    "a next turn out of a call": "{% for a in b %}{% call f() %}{% continue %}{% endcall %}{% endfor %}",
    "a number beyond numbers": "{{ 1.5e999999 }}",
    "half a character": "{{ '\ud800' }}",
}


@pytest.mark.parametrize("source", UNUSABLE.values(), ids=UNUSABLE)
def test_a9_what_python_makes_nothing_of_is_refused_as_a_template(source: str) -> None:
    """As an error of the template's, which gateways log and do not try again at once."""
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(CONVERSATION, {})


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS)
def test_a9_it_is_refused_when_it_is_pushed(tmp_path: Path, source: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["X"], "max_position_embeddings": 8}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "Hello " + source}))
    with pytest.raises(FolderError, match="chat_template"):
        describe(tmp_path, Options(name="m", version="1", tier="fast", pool="p"))


def test_a9_nothing_is_worked_out_while_a_template_is_compiled() -> None:
    """It is nobody's rendering yet: nothing bounds it."""
    source = "{{ ('a' * 4000000) | list | map('upper') | join | length }}{{ 'a' | upper }}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "charge", lambda units: pytest.fail("something was done"))
        ChatTemplate(source)


def test_a9_usual_templates_work() -> None:
    source = (
        "{%- if messages[0]['role'] == 'system' %}"
        "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}"
        "{%- set loop_messages = messages[1:] %}{%- else %}{%- set loop_messages = messages %}{%- endif %}"
        "{%- for message in loop_messages %}"
        "{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}"
        "{%- endif %}{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content | trim ~ '<|im_end|>' }}"
        "{%- if not loop.last %}{{- '\\n' }}{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    )
    told = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi\n"}]
    assert ChatTemplate(source).render(told, {}) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|><|im_start|>assistant\n"
    )
    with pytest.raises(TemplateError, match="roles must alternate"):
        ChatTemplate(source).render([*told, told[1]], {})
    long = [{"role": ("user", "assistant")[i % 2], "content": "x" * 1000} for i in range(1000)]
    assert ChatTemplate(source).render(long, {}).count("<|im_end|>") == 1000
