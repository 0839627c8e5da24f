"""What a caller asks for, whatever face it came through, and what becomes of it with defaults and limits applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec.structs import replace

from libs.callers import bounded
from libs.cursor import Cursor
from libs.texts import ChatMessage, ChatOptions
from libs.texts.conversation import PLAIN, texts_of


@dataclass(frozen=True, slots=True)
class Structure:
    """What the whole output must match: `text` is a JSON Schema document, a regular expression or a Lark grammar."""

    kind: Literal["json_schema", "regex", "grammar"]
    text: str
    field: str = "structured_output"  # the name the caller used, for errors


def is_json(structure: Structure | None) -> bool:
    """Whether an output of this structure is a JSON document."""
    return structure is not None and structure.kind == "json_schema"


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """Generation parameters as the caller gave them; None means the model's default."""

    max_tokens: int | None = None
    max_tokens_field: str = "max_tokens"  # the name the caller used, for errors
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    n: int | None = None
    logprobs: int | None = None
    logprobs_field: str = "logprobs"  # the name the caller used, for errors
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    ignore_eos: bool = False
    structure: Structure | None = None


class Resumed(msgspec.Struct, frozen=True):
    """What a request goes on with."""

    cursor: Cursor
    billed: int | None
    """Output tokens that an earlier request is billed, with the prompt; None: nothing of it is taken off."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. Exactly one of `messages`, `prompt`, `token_ids` and `inputs` is set."""

    model: str
    operation: str  # "chat", "completion", "generate" or "embed"
    messages: tuple[ChatMessage, ...] | None = None
    chat: ChatOptions = PLAIN
    """Of messages: what their template is told beside them."""
    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    inputs: tuple[str | tuple[int, ...], ...] = ()
    """To embed: texts, or the ids of their tokens."""
    parameters: Parameters = Parameters()
    client_request_id: str = ""
    user: str = ""
    """The tenant's user, as the caller names them."""
    session: str = ""
    """The conversation or session, likewise."""
    batch: bool = False
    whole: bool = False
    """Nobody reads it before it is whole, so its tokens may come in groups."""
    entire: bool = False
    """Nor does anybody get a part of it when it fails."""
    resumed: Resumed | None = None
    """It goes on with an answer that was given in part."""

    def hinted(self, user: str, session: str) -> Spec:
        """The spec with what the headers say of both, which goes before what its body says: the edge places callers by
        the headers alone."""
        user, session = bounded(user or self.user), bounded(session or self.session)
        return self if (user, session) == (self.user, self.session) else replace(self, user=user, session=session)

    def texts(self) -> list[str]:
        """The user's words, for the safety filter; empty for token ids, which only a tokenizer can spell."""
        if self.messages is not None:
            return texts_of(self.messages, self.chat)
        return [self.prompt] if self.prompt is not None else []


class BoundParameters(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Parameters with every default applied and every limit checked. Answers and cursors are known by the repr, which
    lacks what a request does not ask for: a new field changes only those that use it."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    """In the version's own tokens."""
    ignore_eos: bool = False
    structure: Structure | None = None
