"""One model version's way from words to tokens and back."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from libs.errors import Reason, WeirError
from services.gateway.policy.spec import ChatMessage
from services.gateway.text.detokenizer import ByteDetokenizer, Detokenizer, StreamDetokenizer, byte_alphabet

# Stand in for message contents that spell special tokens; private-use characters that no template produces.
_MARK = re.compile("\ue000(\\d+)\ue001")


class TextModelError(Exception):
    """The tokenizer or template of a model version cannot be loaded; the message names the file."""


class TextModel:
    """Immutable after construction; shared by all requests for its version."""

    def __init__(self, directory: Path) -> None:
        """Load `tokenizer.json` and `tokenizer_config.json`.

        :raises TextModelError: a file is missing or malformed.
        """
        try:
            self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
            # A second instance that reads special tokens in text as plain text, for what users wrote.
            self._plain = Tokenizer.from_file(str(directory / "tokenizer.json"))
            config = json.loads((directory / "tokenizer_config.json").read_text("utf-8"))
            spec = json.loads(self._tokenizer.to_str())
        except Exception as error:  # the tokenizers library raises bare Exception
            raise TextModelError(f"{directory}: {error}") from error
        self._plain.encode_special_tokens = True
        added = [token for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        self._special = re.compile("|".join(re.escape(t.content) for t in added)) if added else re.compile(r"(?!)")
        self._names = {key: _token_text(config.get(key)) for key in ("bos_token", "eos_token", "pad_token")}
        self._template = _compile(config.get("chat_template") or _template_file(directory), directory)
        self._bytes = self._byte_table(spec, {token.content for token in added})
        self.vocabulary_size = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Tokens of raw text, with the tokenizer's own framing (such as a begin-of-sequence token); special tokens
        spelt in the text are plain text."""
        return self._plain.encode(text).ids

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Tokens of a conversation, rendered with the chat template and open for the assistant's turn.

        :raises WeirError: INVALID_REQUEST when the model has no chat template or the template refuses the messages.
        """
        if not any(self._special.search(message.content) for message in messages):
            return self._tokenizer.encode(self._render(messages), add_special_tokens=False).ids
        # A user who writes "<|end|>" must not end the turn: template and contents are tokenised apart.
        marked = [ChatMessage(m.role, f"\ue000{i}\ue001") for i, m in enumerate(messages)]
        ids: list[int] = []
        for position, part in enumerate(_MARK.split(self._render(marked))):
            if position % 2:
                ids += self._plain.encode(messages[int(part)].content, add_special_tokens=False).ids
            elif part:
                ids += self._tokenizer.encode(part, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text that tokens spell; special tokens spell nothing."""
        detokenizer = self.detokenizer()
        return detokenizer.feed(ids) + detokenizer.flush()

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one sequence."""
        return StreamDetokenizer(self._tokenizer) if self._bytes is None else ByteDetokenizer(self._bytes)

    def token(self, token_id: int) -> tuple[str, bytes]:
        """One token's text (U+FFFD for a part of a character) and bytes, for log-probabilities."""
        if self._bytes is not None and token_id < len(self._bytes) and self._bytes[token_id]:
            raw = self._bytes[token_id]
            return raw.decode("utf-8", "replace"), raw
        text = self._tokenizer.id_to_token(token_id) or ""
        return text, text.encode()

    def _render(self, messages: Sequence[ChatMessage]) -> str:
        if self._template is None:
            raise WeirError(
                Reason.INVALID_REQUEST, "this model has no chat template; use completions", limit="messages"
            )
        try:
            return self._template.render(
                messages=[{"role": m.role, "content": m.content} for m in messages],
                add_generation_prompt=True,
                **self._names,
            )
        except TemplateError as error:
            raise WeirError(Reason.INVALID_REQUEST, f"messages: {error.message}", limit="messages") from error

    def _byte_table(self, spec: dict[str, Any], special: set[str]) -> list[bytes] | None:
        if (spec.get("decoder") or {}).get("type") != "ByteLevel":
            return None
        alphabet = byte_alphabet()
        table = [b""] * self._tokenizer.get_vocab_size()
        for text, token_id in self._tokenizer.get_vocab().items():
            if text in special or token_id >= len(table):
                continue
            known = all(character in alphabet for character in text)
            table[token_id] = bytes(alphabet[c] for c in text) if known else text.encode()
        return table


def _token_text(value: Any) -> str:
    return (value.get("content", "") if isinstance(value, dict) else value) or ""


def _template_file(directory: Path) -> str:
    """The template in a file of its own, as newer checkpoints have it; empty without one."""
    try:
        return (directory / "chat_template.jinja").read_text("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise TextModelError(f"{directory}/chat_template.jinja: {error}") from error


def _compile(source: Any, directory: Path) -> Any:
    if not source:
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise TextModelError(f"{directory}/tokenizer_config.json: chat_template: {error}") from error


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
