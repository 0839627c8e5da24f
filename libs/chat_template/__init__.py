"""Chat templates: Jinja programs that come with model files, run on everybody's conversations inside bounds.

    template = ChatTemplate(source)              # or TemplateError
    text = template.render(messages, names)      # or TemplateError: refused by the template, or out of bounds

Jinja's sandbox keeps a program from reaching Python; it bounds neither how long it runs nor how much it makes. Here a
program has a budget of work for each rendering: every turn of a loop and every call costs one unit, everything
that makes or compares text costs as many as it has characters. So there is no program that runs for more than a
fraction of a second or makes more than `MAX_CHARACTERS`, whatever it nests, doubles or repeats.
"""

from libs.chat_template.template import MAX_CHARACTERS, ChatTemplate, TemplateError

__all__ = ["MAX_CHARACTERS", "ChatTemplate", "TemplateError"]
