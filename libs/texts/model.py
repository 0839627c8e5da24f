"""One model version's way from words to tokens and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from tokenizers import Tokenizer

from libs.chat_template import ChatTemplate, TemplateError, chosen
from libs.errors import Reason, WeirError
from libs.texts.control import ControlTokens, between, free_marks
from libs.texts.conversation import PLAIN, Change, ChatMessage, ChatOptions, texts_of
from libs.texts.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer, byte_alphabet
from libs.texts.rendering import ChatRenderer

_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""SentencePiece's."""


class TextModelError(Exception):
    """The tokenizer or template of a model version cannot be loaded; the message names the file."""


class TextModel:
    """Immutable after construction; shared by all requests for its version."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Load `tokenizer.json`, `tokenizer_config.json` and, where they are, `special_tokens_map.json` and the files
        that may have the chat template.

        :raises TextModelError: a file is missing or malformed.
        """
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if name not in files:
                raise TextModelError(f"{name} is missing")
        try:
            self._tokenizer = Tokenizer.from_buffer(files["tokenizer.json"])
            config = json.loads(files["tokenizer_config.json"])
            spec = json.loads(self._tokenizer.to_str())
            marks = {**json.loads(files.get("special_tokens_map.json", b"{}")), **config}
            older = {**json.loads(files.get("chat_template.json", b"{}"))}
            self._names = {key: _token_text(marks.get(key)) for key in _NAMES}
        except Exception as error:  # the tokenizers library raises bare Exception
            raise TextModelError(f"tokenizer: {error}") from error
        try:
            template = chosen(files.get("chat_template.jinja"), config, older)
            self._chat = ChatRenderer(ChatTemplate(template), self._names) if template else None
        except TemplateError as error:
            raise TextModelError(f"chat_template: {error}") from error
        every = self._tokenizer.get_added_tokens_decoder().values()
        written = self._chat.written if self._chat is not None else ""
        self._control = ControlTokens(
            [each for each in every if each.special or (each.content in written and not each.content.isspace())],
            self._tokenizer,
        )
        self._plain = _without(spec, set(self._control.contents))
        vocabulary, decoder = self._tokenizer.get_vocab(), spec.get("decoder") or {}
        self.vocabulary_size = max(vocabulary.values(), default=-1) + 1
        special = {token.content for token in every if token.special}
        of_bytes = decoder.get("type") == "ByteLevel"
        self._bytes = _byte_table(vocabulary, self.vocabulary_size, special) if of_bytes else None
        self._pieces = _SPACE in json.dumps(decoder, ensure_ascii=False)

    def encode(self, text: str) -> list[int]:
        """Tokens of raw text, with the tokenizer's own framing (such as a begin-of-sequence token); special tokens
        spelt in the text are plain text."""
        return _ids(self._plain, text, framed=True)

    def encode_chat(self, messages: Sequence[ChatMessage], options: ChatOptions = PLAIN) -> list[int]:
        """Tokens of a conversation, rendered with the chat template and open for the assistant's turn.

        :raises WeirError: INVALID_REQUEST when the model has no chat template, or the template refuses the messages or
            leaves out something of them, which is named.
        """
        chat, control = self._chat, self._control
        if chat is None:
            message = "this model has no chat template; use completions"
            raise WeirError(Reason.INVALID_REQUEST, message, limit="messages")
        chat.check(messages, options)
        texts = texts_of(messages, options)
        plain = options is PLAIN and all(message.plain for message in messages)
        # Beside a template's own "<|" a name such as "end" is one. No template puts contents there, nor two in a row.
        joining = not plain and any(map(control.part, texts))
        if not (joining or options.continued or any(map(control.spelled, texts))):
            return _ids(self._tokenizer, chat.render(messages, options))
        # A user who writes "<|end|>" must not end the turn: it goes through the template between two marks, and is
        # tokenised apart. The template sees all else as it is.
        marks = free_marks(texts, 3)
        if len(marks) < 3:
            message = "control tokens cannot be told from text in a message that has all of U+FDD0 to U+FDEF"
            raise WeirError(Reason.INVALID_REQUEST, message, limit="messages")
        begin, end, tail = marks

        def rendered(change: Change) -> list[str]:
            given = [message.mapped(change) for message in messages]
            return between(chat.render(given, options.mapped(change), tail), begin, end)

        parts = rendered(lambda text: control.marked(text, begin, end))
        if joining:
            # With all that may be a part of one apart: where that makes a difference, one was.
            apart = rendered(lambda t: f"{begin}{t}{end}" if control.part(t) else control.marked(t, begin, end))
            parts = parts if self._own(parts) == self._own(apart) else apart
        ids: list[int] = []
        for position, part in enumerate(parts):
            if part:
                ids += self._inside(self._plain if position % 2 else self._tokenizer, part, first=not ids)
        return ids

    def _inside(self, tokenizer: Tokenizer, text: str, *, first: bool) -> list[int]:
        """The tokens of a text behind others: SentencePiece puts a blank before the first word of a text."""
        if first:
            return _ids(tokenizer, text)
        lead = _ids(tokenizer, "\n")
        ids = _ids(tokenizer, "\n" + text)
        return ids[len(lead) :] if lead and ids[: len(lead)] == lead else _ids(tokenizer, text)

    def _own(self, parts: Sequence[str]) -> list[str]:
        """The template's control tokens."""
        return [each for part in parts[::2] for each in self._control.found(part)]

    def spellings(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each word as they are at the beginning of a text and behind a blank: each spelling once, and no
        special tokens."""
        begins = [word.lstrip() for word in words]
        texts = [text for word in begins for text in (word, f" {word}")]
        found = self._plain.encode_batch_fast(texts, add_special_tokens=False)
        return tuple(dict.fromkeys(tuple(each.ids) for each in found if each.ids))

    def decode(self, ids: Sequence[int]) -> str:
        """The text that tokens spell; special tokens spell nothing."""
        detokenizer = self.detokenizer()
        return detokenizer.feed(ids) + detokenizer.flush()

    def detokenizer(self) -> Detokenizer:
        """A fresh one, for one sequence."""
        return WindowDetokenizer(self._tokenizer) if self._bytes is None else ByteDetokenizer(self._bytes)

    def token(self, token_id: int) -> tuple[str, bytes]:
        """One token's text (U+FFFD for a part of a character) and bytes, for log-probabilities."""
        if self._bytes is not None and token_id < len(self._bytes) and self._bytes[token_id]:
            raw = self._bytes[token_id]
            return raw.decode("utf-8", "replace"), raw
        text = self._tokenizer.id_to_token(token_id) or ""
        if self._pieces:
            if byte := _BYTE.fullmatch(text):
                raw = bytes.fromhex(byte[1])
                return raw.decode("utf-8", "replace"), raw
            text = text.replace(_SPACE, " ")
        return text, text.encode()


def _byte_table(vocabulary: Mapping[str, int], size: int, special: Set[str]) -> list[bytes]:
    alphabet = byte_alphabet()
    table = [b""] * size
    for text, token_id in vocabulary.items():
        if text in special:
            continue
        known = all(character in alphabet for character in text)
        table[token_id] = bytes(alphabet[c] for c in text) if known else text.encode()
    return table


def _ids(tokenizer: Tokenizer, text: str, *, framed: bool = False) -> list[int]:
    """As a batch of one: `encode` holds the interpreter's lock, so that a thread would spare the event loop nothing,
    and works out offsets, which nobody needs (for 300,000 characters twice the time)."""
    return tokenizer.encode_batch_fast([text], add_special_tokens=framed)[0].ids


def _without(spec: dict[str, Any], control: Set[str]) -> Tokenizer:
    """A second instance, for what users wrote: it reads control tokens in text as plain text."""
    for token in spec.get("added_tokens") or ():
        token["special"] = token["special"] or token["content"] in control
    plain = Tokenizer.from_str(json.dumps(spec))
    plain.encode_special_tokens = True
    return plain


def _token_text(value: Any) -> str:
    return (value.get("content", "") if isinstance(value, dict) else value) or ""
