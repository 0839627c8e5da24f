"""`python -m libs.chat_template < template`: try a template in a process that may be lost.

Renders conversations of many shapes, with limits on processor time and memory that the operating system keeps. Exit
status 0: it renders what it does not refuse; 1 with one line on standard error: it must not be used.
"""

from __future__ import annotations

import resource
import sys
from itertools import cycle, islice

from libs.chat_template.template import ChatTemplate, TemplateError

SECONDS = 5
"""Of processor time, for all trials together."""
MEMORY = 1 << 30
"""Bytes of address space."""


def trials() -> list[list[dict[str, str]]]:
    """Conversations: usual, long, without a system message, with every role alone, empty, with odd text."""
    usual = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    turns = [{"role": role, "content": "word " * 50} for role in islice(cycle(("user", "assistant")), 199)]
    odd = [{"role": "user", "content": "{{ 1 }}{% raw %}\u202e\x00" + "a" * 100_000}]
    return [usual, usual[1:], turns, odd, [], *([{"role": role, "content": "x"}] for role in ("system", "tool"))]


def main() -> int:
    """The command; its exit status."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    try:
        template = ChatTemplate(sys.stdin.read())
        rendered = template.render(trials()[1], names)
    except TemplateError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if "Hello" not in rendered:
        sys.stderr.write("the template leaves out what the user says\n")
        return 1
    for messages in trials():
        try:
            template.render(messages, names)
        except TemplateError as error:
            if "more than is allowed" in str(error):
                sys.stderr.write(f"{error}\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
