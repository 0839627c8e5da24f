"""Templates of popular models, from the packages that carry them, against transformers: make test-templates.

The folder is in WEIR_TEMPLATES. Not part of the gate, which needs no package's source.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import _cached_compile_jinja_template as compiled

from libs.chat_template import ChatTemplate, TemplateError

FILES = sorted(Path(os.environ["WEIR_TEMPLATES"]).rglob("*.jinja"))
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "description": "n"}, "b": {"type": "string"}},
            "required": ["a"],
        },
    },
}
CALL = {"type": "function", "id": "call_0001", "function": {"name": "f", "arguments": {"a": 1, "b": "x<y"}}}


def said(*turns: str) -> list[dict[str, Any]]:
    """Turns by their roles' first letters: "u Hello"."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]


CONVERSATIONS: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    *(
        (said(*turns), {})
        for turns in (
            ("u Hi",),
            ("s Be brief.", "u Hi"),
            ("u a", "a b", "u c"),
            ("s s", "u a", "a b", "u c"),
            ("u  x \n",),
            ("u a", "a <think>\nq\n</think>\n\nb", "u c"),
            ("u ",),
            (),
            ("a x",),
            ("s x",),
            ("u a", "u b"),
            ("t x",),
            ("u é😀{{ 1 }}",),
            ("u a", "a b"),
            ("s s", "s t", "u x"),
        )
    ),
    (said("u hi"), {"tools": [TOOL]}),
    (
        [
            *said("u hi"),
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_0001", "name": "f", "content": "42"},
        ],
        {"tools": [TOOL]},
    ),
    (said("u hi"), {"enable_thinking": False}),
    (said("u hi"), {"documents": [{"title": "t", "text": "x"}]}),
]


def test_there_are_templates() -> None:
    assert len(FILES) >= 100


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_it_renders_as_in_transformers_or_both_refuse(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    known, ours = compiled(source), ChatTemplate(source)
    for messages, more in CONVERSATIONS:
        variables = {"tools": None, "documents": None, **NAMES, **more}
        try:
            expected = known.render(messages=messages, add_generation_prompt=True, **variables)
        except Exception:  # of any kind: it does not take this conversation
            with pytest.raises(TemplateError):
                ours.render(messages, variables)
        else:
            assert ours.render(messages, variables) == expected, (messages, more)


def test_a_thousand_short_messages_are_rendered_in_a_moment_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """By the clock of this thread, and so no more than said."""
    turns = said(*(f"{'ua'[number % 2]} {'word ' * 12}" for number in range(1000)))
    seen = []
    for file in FILES:
        template, began = ChatTemplate(file.read_text(encoding="utf-8")), time.thread_time()
        try:
            template.render(turns, NAMES)
            how = "rendered"
        except TemplateError as error:
            how = str(error)[:60]
        seen.append((time.thread_time() - began, how, file.name))
    with capsys.disabled():
        slowest = [
            f"  {seconds * 1000:6.0f} ms  {name}: {how}\n" for seconds, how, name in sorted(seen, reverse=True)[:8]
        ]
        sys.stdout.write(f"\ntemplates: {len(FILES)}; of 1,000 messages, the slowest:\n{''.join(slowest)}")
    assert sum(how == "rendered" for _, how, _ in seen) > len(FILES) * 0.8
