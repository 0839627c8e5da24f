"""One model version's way from words to tokens and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from libs.chat_template import ChatTemplate, TemplateError
from libs.errors import Reason, WeirError
from libs.texts.detokenizer import ByteDetokenizer, Detokenizer, StreamDetokenizer, byte_alphabet

# Stand in for message contents that spell special tokens; private-use characters that no template produces.
_MARK = re.compile("\ue000(\\d+)\ue001")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    content: str


class TextModelError(Exception):
    """The tokenizer or template of a model version cannot be loaded; the message names the file."""


class TextModel:
    """Immutable after construction; shared by all requests for its version."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Load `tokenizer.json`, `tokenizer_config.json` and, if there is one, `chat_template.jinja`.

        :raises TextModelError: a file is missing or malformed.
        """
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if name not in files:
                raise TextModelError(f"{name} is missing")
        try:
            self._tokenizer = Tokenizer.from_buffer(files["tokenizer.json"])
            # A second instance that reads special tokens in text as plain text, for what users wrote.
            self._plain = Tokenizer.from_buffer(files["tokenizer.json"])
            config = json.loads(files["tokenizer_config.json"])
            spec = json.loads(self._tokenizer.to_str())
            # Newer checkpoints have the template in a file of its own.
            template = config.get("chat_template") or files.get("chat_template.jinja", b"").decode()
        except Exception as error:  # the tokenizers library raises bare Exception
            raise TextModelError(f"tokenizer: {error}") from error
        self._plain.encode_special_tokens = True
        added = [token for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        self._special = _any_of(token.content for token in added)
        # Some are looked for in the normalised text, where "＜s＞" is one too.
        normal = self._tokenizer.normalizer
        folded = [token.content for token in added if token.normalized] if normal is not None else []
        self._normalised = normal.normalize_str if folded else None
        self._folded = _any_of(normal.normalize_str(content) for content in folded)
        self._names = {key: _token_text(config.get(key)) for key in ("bos_token", "eos_token", "pad_token")}
        try:
            self._template = ChatTemplate(template) if template else None
        except TemplateError as error:
            raise TextModelError(f"chat_template: {error}") from error
        self._bytes = self._byte_table(spec, {token.content for token in added})
        self.vocabulary_size = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Tokens of raw text, with the tokenizer's own framing (such as a begin-of-sequence token); special tokens
        spelt in the text are plain text."""
        return _ids(self._plain, text, framed=True)

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Tokens of a conversation, rendered with the chat template and open for the assistant's turn.

        :raises WeirError: INVALID_REQUEST when the model has no chat template or the template refuses the messages.
        """
        if not any(self._spells_special(message.content) for message in messages):
            return _ids(self._tokenizer, self._render(messages))
        # A user who writes "<|end|>" must not end the turn: template and contents are tokenised apart.
        marked = [ChatMessage(m.role, f"\ue000{i}\ue001") for i, m in enumerate(messages)]
        ids: list[int] = []
        for position, part in enumerate(_MARK.split(self._render(marked))):
            if position % 2:
                ids += _ids(self._plain, messages[int(part)].content)
            elif part:
                ids += _ids(self._tokenizer, part)
        return ids

    def spellings(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each word as they are at the beginning of a text and behind a blank: each spelling once, and no
        special tokens."""
        begins = [word.lstrip() for word in words]
        texts = [text for word in begins for text in (word, f" {word}")]
        found = self._plain.encode_batch_fast(texts, add_special_tokens=False)
        return tuple(dict.fromkeys(tuple(each.ids) for each in found if each.ids))

    def _spells_special(self, content: str) -> bool:
        if self._special.search(content):
            return True
        return self._normalised is not None and bool(self._folded.search(self._normalised(content)))

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
            return self._template.render([{"role": m.role, "content": m.content} for m in messages], self._names)
        except TemplateError as error:
            raise WeirError(Reason.INVALID_REQUEST, f"messages: {error}", limit="messages") from error

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


def _ids(tokenizer: Tokenizer, text: str, *, framed: bool = False) -> list[int]:
    """As a batch of one: `encode` holds the interpreter's lock, so that a thread would spare the event loop nothing,
    and works out offsets, which nobody needs (for 300,000 characters twice the time)."""
    return tokenizer.encode_batch_fast([text], add_special_tokens=framed)[0].ids


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Finds any of the words; nothing where there are none."""
    return re.compile("|".join(map(re.escape, words)) or r"(?!)")


def _token_text(value: Any) -> str:
    return (value.get("content", "") if isinstance(value, dict) else value) or ""
