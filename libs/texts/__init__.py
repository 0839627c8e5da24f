"""Text ⇄ tokens: chat templates, tokenisation, incremental detokenisation, and the files of model versions that they
need. CPU work that workers must not do."""

from libs.texts.conversation import ChatMessage, ChatOptions, ToolCall
from libs.texts.detokenizer import ByteDetokenizer, Detokenizer, byte_alphabet
from libs.texts.model import TextModel, TextModelError
from libs.texts.store import TextStore

__all__ = [
    "ByteDetokenizer",
    "ChatMessage",
    "ChatOptions",
    "Detokenizer",
    "TextModel",
    "TextModelError",
    "TextStore",
    "ToolCall",
    "byte_alphabet",
]
