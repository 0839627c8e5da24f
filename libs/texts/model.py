"""One model version's way from words to tokens and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from libs.chat_template import ChatTemplate, TemplateError, chosen
from libs.errors import Reason, WeirError
from libs.texts.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer, byte_alphabet

_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_NONCHARACTERS = [chr(each) for each in range(0xFDD0, 0xFDF0)]
"""Of no language (Unicode, chapter 23.7): two of them stand around what callers wrote that spells a control token."""
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""SentencePiece's."""
_TRIALS = tuple(
    tuple({"role": role, "content": "x"} for role in roles)
    for roles in (("system", "user", "assistant", "user"), ("user", "assistant", "user"), ("user",), ("tool",))
)


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
            older = json.loads(files.get("chat_template.json", b"{}"))
            self._names = {key: _token_text(marks.get(key)) for key in _NAMES}
        except Exception as error:  # the tokenizers library raises bare Exception
            raise TextModelError(f"tokenizer: {error}") from error
        try:
            template = chosen(files.get("chat_template.jinja"), config, older)
            self._template = ChatTemplate(template) if template else None
        except TemplateError as error:
            raise TextModelError(f"chat_template: {error}") from error
        every = self._tokenizer.get_added_tokens_decoder().values()
        written = self._written()
        added = [each for each in every if each.special or (each.content in written and not each.content.isspace())]
        self._control = _any_of(token.content for token in added)
        self._plain = _without(spec, {token.content for token in added})
        # Some are looked for in the normalised text, where "＜s＞" is one too.
        normal = self._tokenizer.normalizer
        folded = [token.content for token in added if token.normalized] if normal is not None else []
        self._normalised = normal.normalize_str if folded else None
        self._folded = _any_of(normal.normalize_str(content) for content in folded)
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

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Tokens of a conversation, rendered with the chat template and open for the assistant's turn.

        :raises WeirError: INVALID_REQUEST when the model has no chat template or the template refuses the messages.
        """
        if not any(self._spells_control(message.content) for message in messages):
            return _ids(self._tokenizer, self._render(messages))
        # A user who writes "<|end|>" must not end the turn: it goes through the template between two marks, and is
        # tokenised apart. The template sees all else as it is.
        contents = "".join(message.content for message in messages)
        free = (each for each in _NONCHARACTERS if each not in contents)
        begin, end = next(free, ""), next(free, "")
        if not end:
            message = "control tokens cannot be told from text in a message that has all of U+FDD0 to U+FDEF"
            raise WeirError(Reason.INVALID_REQUEST, message, limit="messages")
        rendered = self._render([ChatMessage(m.role, self._marked(m.content, begin, end)) for m in messages])
        ids: list[int] = []
        # What a template does to a text may part two marks: one alone is left out, and still parts what is beside it.
        for position, part in enumerate(re.split(f"{begin}([^{begin}{end}]*){end}|{begin}|{end}", rendered)):
            if part:
                ids += self._inside(self._plain if position % 2 else self._tokenizer, part, first=not ids)
        return ids

    def _marked(self, content: str, begin: str, end: str) -> str:
        if self._control.search(content):
            return self._control.sub(f"{begin}\\g<0>{end}", content)
        # Only when it is normalised, where nobody can say what is what.
        return f"{begin}{content}{end}" if self._spells_control(content) else content

    def _inside(self, tokenizer: Tokenizer, text: str, *, first: bool) -> list[int]:
        """The tokens of a text behind others: SentencePiece puts a blank before the first word of a text."""
        if first:
            return _ids(tokenizer, text)
        lead = _ids(tokenizer, "\n")
        ids = _ids(tokenizer, "\n" + text)
        return ids[len(lead) :] if lead and ids[: len(lead)] == lead else _ids(tokenizer, text)

    def _written(self) -> str:
        """What the template writes: its literals, and what it makes of a few conversations."""
        if self._template is None:
            return ""
        texts = [self._template.literals]
        for trial in _TRIALS:
            with suppress(TemplateError):
                texts.append(self._template.render(trial, self._names))
        return "\0".join(texts)

    def spellings(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """The tokens of each word as they are at the beginning of a text and behind a blank: each spelling once, and no
        special tokens."""
        begins = [word.lstrip() for word in words]
        texts = [text for word in begins for text in (word, f" {word}")]
        found = self._plain.encode_batch_fast(texts, add_special_tokens=False)
        return tuple(dict.fromkeys(tuple(each.ids) for each in found if each.ids))

    def _spells_control(self, content: str) -> bool:
        if self._control.search(content):
            return True
        return self._normalised is not None and bool(self._folded.search(self._normalised(content)))

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

    def _render(self, messages: Sequence[ChatMessage]) -> str:
        if self._template is None:
            raise WeirError(
                Reason.INVALID_REQUEST, "this model has no chat template; use completions", limit="messages"
            )
        try:
            return self._template.render([{"role": m.role, "content": m.content} for m in messages], self._names)
        except TemplateError as error:
            raise WeirError(Reason.INVALID_REQUEST, f"messages: {error}", limit="messages") from error


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


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Finds any of the words; nothing where there are none."""
    return re.compile("|".join(map(re.escape, words)) or r"(?!)")


def _token_text(value: Any) -> str:
    return (value.get("content", "") if isinstance(value, dict) else value) or ""
