"""From a conversation to the prompt's text: what a model's chat template shows of it, found out by trials when it is
loaded, and the text. What a caller says and the template would leave out is refused by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from libs.chat_template import ChatTemplate, TemplateError
from libs.errors import Reason, WeirError
from libs.texts.conversation import PLAIN, ChatMessage, ChatOptions, ToolCall

_Turns = tuple[ChatMessage, ...]
_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
"""Variables that chat_template_kwargs do not set."""
_SWITCHES = ("enable_thinking", "thinking")
"""By which templates turn thinking off."""
_ID, _OTHER = "call00001", "call00002"
"""Of nine letters and digits, which is all that Mistral's templates take."""
_CALL = ToolCall("f", {"a": "b"}, _ID)
_ASKED, _SAID = ChatMessage("user", "x"), ChatMessage("assistant", "y")
_CALLED = ChatMessage("assistant", "", tool_calls=(_CALL,))
_CALLING_OTHERWISE = replace(_CALLED, tool_calls=(ToolCall("f", {"a": "c"}, _ID),))
_RESULT = ChatMessage("tool", "y", tool_call_id=_ID)
_USUAL = ((ChatMessage("system", "z"), _ASKED, _SAID, _ASKED), (_ASKED, _SAID, _ASKED), (_ASKED,))
_TOOLS = ((_ASKED, _CALLED, _RESULT), (_ASKED, _RESULT))


class ChatRenderer:
    """A model's template, with what it shows. Immutable; threads may render at the same time."""

    def __init__(self, template: ChatTemplate, names: Mapping[str, str]) -> None:
        """Renders some twenty small conversations. `names` are the model's own tokens, such as `bos_token`."""
        self._template = template
        self._names = names
        self.variables = template.variables - _OURS - names.keys()
        """What `chat_template_kwargs` may set."""
        self._documents = "documents" in template.variables
        self._form: dict[str, Any] = {}
        """How calls are told: see `ChatMessage.told`."""
        for as_text, nothing in (*itertools.product((False, True), ("", None)), (False, "")):
            self._form = {"as_text": as_text, "nothing": nothing}
            trials = _Trials(self._tried)
            turns, others = (_ASKED, _CALLED, _RESULT), (_ASKED, _CALLING_OTHERWISE, _RESULT)
            self._calls = trials.shows(turns, others) or trials.shows(turns[:2], others[:2])
            if self._calls and not any(str(_CALL.arguments) in text for text in trials.texts()):  # as Python writes it
                break
        usual, tools = trials.taken(_USUAL), trials.taken(_TOOLS)
        changed = ("system", usual), ("assistant", usual), ("tool", tools)
        self._hidden = frozenset(role for role, turns in changed if trials.hides(turns, role, content="changed"))
        places = ("user", usual), *changed
        self._named = frozenset(role for role, turns in places if trials.depends(turns, role, name="n"))
        thought = (_ASKED, replace(_SAID, reasoning="z"))
        self._thoughts = trials.shows(thought, (_ASKED, _SAID)) or trials.depends(tools, "assistant", reasoning="z")
        both = (_ASKED, replace(_CALLED, tool_calls=(_CALL, ToolCall("g", {"a": "b"}, _OTHER))))
        results = (_RESULT, replace(_RESULT, tool_call_id=_OTHER))
        self._links = trials.shows((*both, *results), (*both, *reversed(results)))
        """It shows, or looks up, which call a tool's turn answers."""
        self._opens = trials.text((_ASKED,)) != self._tried((_ASKED,), replace(PLAIN, generation_prompt=False))
        self.written = "\0".join([template.literals, *trials.texts()])
        """What the template writes: its literals, and what it makes of those conversations."""

    def check(self, messages: Sequence[ChatMessage], options: ChatOptions) -> None:
        """Whether the template shows all that is said.

        :raises WeirError: INVALID_REQUEST naming the field that it would leave out.
        """
        for position, message in enumerate(messages):
            if message.role in self._hidden:
                raise _refused(f"messages[{position}].role", f"leaves out what the role {message.role} says")
        if not all(message.plain for message in messages):
            self._check_turns(messages)
        if options is PLAIN:
            return
        for name in options.variables:
            if name not in self.variables:
                known = ", ".join(sorted(self.variables)) or "none"
                raise _refused(f"chat_template_kwargs.{name}", f"has no such variable; it has {known}")
        if options.documents and not self._documents:
            raise _refused("documents", "knows no documents")
        if options.continued and messages[-1].tool_calls:
            why = "continue_final_message: the last message has calls, behind which nothing is said"
            raise WeirError(Reason.INVALID_REQUEST, why, limit="continue_final_message")
        if not (options.generation_prompt or options.continued or self._opens):
            raise _refused("add_generation_prompt", "makes no difference of it")
        self._effort(options)

    def render(self, messages: Sequence[ChatMessage], options: ChatOptions, tail: str = "") -> str:
        """The conversation as text. Where its last message is to be continued, the text ends with that one's content:
        `tail` is a character that no text has, by which the end is found.

        :raises WeirError: INVALID_REQUEST: the template refuses the messages, or leaves out what is to be continued.
        """
        told = [message.told(**self._form) for message in messages]
        if not options.continued:
            return self._rendered(told, options)
        last = told[-1]["content"]
        told[-1]["content"] = f"{last}{tail} "  # a mark and a blank, as transformers has it
        text = self._rendered(told, options)
        end = text.rfind(tail)
        if end < 0 or last.strip() not in text:
            raise _refused("continue_final_message", "leaves out a part of the last message")
        return text[:end] if text[end + 1 : end + 2] == " " else text[:end].rstrip()

    def _rendered(self, told: list[dict[str, Any]], options: ChatOptions) -> str:
        try:
            return self._template.render(told, self._named_values(options))
        except TemplateError as error:
            raise WeirError(Reason.INVALID_REQUEST, f"messages: {error}", limit="messages") from error

    def _named_values(self, options: ChatOptions) -> Mapping[str, Any]:
        if options is PLAIN:
            return self._names
        values = {**self._names, **options.variables, **self._effort(options)}
        values["add_generation_prompt"] = options.generation_prompt and not options.continued
        if options.documents:
            values["documents"] = list(options.documents)
        return values

    def _effort(self, options: ChatOptions) -> Mapping[str, Any]:
        """The variable that says how long to think."""
        effort, field = options.reasoning_effort, "reasoning_effort"
        if not effort:
            return {}
        value: Any = effort
        name = next((name for name in _SWITCHES if effort == "none" and name in self.variables), field)
        if name != field:
            value = False
        elif field not in self.variables:
            if effort == "none":
                return {}
            raise _refused(field, "has no such variable")
        if name in options.variables:
            raise WeirError(Reason.INVALID_REQUEST, f"{field}: not beside chat_template_kwargs.{name}", limit=field)
        return {name: value}

    def _check_turns(self, messages: Sequence[ChatMessage]) -> None:
        last_asked = max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
        due: list[str] = []  # ids of calls whose results are still to come
        for position, message in enumerate(messages):
            where = f"messages[{position}]"
            if message.tool_calls and not self._calls:
                raise _refused(f"{where}.tool_calls", "shows no calls")
            # A result's name is its call's, which was said before: clients send it, templates need not show it.
            if message.name and message.role not in self._named and message.role != "tool":
                raise _refused(f"{where}.name", f"shows no names of the role {message.role}")
            # What was thought before the last question is what templates leave out that know thoughts.
            if message.reasoning and position > last_asked and not self._thoughts:
                raise _refused(f"{where}.reasoning_content", "shows no thoughts")
            if message.tool_call_id and not self._links:
                if message.tool_call_id in due[1:]:
                    raise _refused(
                        f"{where}.tool_call_id", "knows results by their order, which must be that of the calls"
                    )
                due = due[1:]
            if message.tool_calls:
                due = [call.id for call in message.tool_calls]

    def _tried(self, turns: Sequence[ChatMessage], options: ChatOptions = PLAIN) -> str | None:
        told = [turn.told(**self._form) for turn in turns]
        with suppress(TemplateError):
            return self._template.render(told, self._named_values(options))
        return None


class _Trials:
    """Small conversations, each rendered once."""

    def __init__(self, tried: Callable[[_Turns], str | None]) -> None:
        self._tried = tried
        self._found: dict[str, str | None] = {}

    def texts(self) -> list[str]:
        return [text for text in self._found.values() if text is not None]

    def text(self, turns: _Turns) -> str | None:
        """None: the template does not take it."""
        known = repr(turns)
        if known not in self._found:
            self._found[known] = self._tried(turns)
        return self._found[known]

    def taken(self, candidates: Sequence[_Turns]) -> _Turns:
        """The first that is rendered."""
        return next((turns for turns in candidates if self.text(turns) is not None), ())

    def shows(self, turns: _Turns, others: _Turns) -> bool:
        """The first conversation has a text, and it is another one than the second's."""
        text = self.text(turns)
        return text is not None and text != self.text(others)

    def depends(self, turns: _Turns, role: str, **more: Any) -> bool:
        """Turns of this role are shown as others when they have this."""
        changed = tuple([replace(turn, **more) if turn.role == role else turn for turn in turns])
        return changed != turns and self.shows(changed, turns)

    def hides(self, turns: _Turns, role: str, **more: Any) -> bool:
        return any(turn.role == role for turn in turns) and not self.depends(turns, role, **more)


def _refused(field: str, what: str) -> WeirError:
    return WeirError(Reason.INVALID_REQUEST, f"{field}: this model's chat template {what}", limit=field)
