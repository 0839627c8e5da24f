"""Chat templates: Jinja programs that come with model files, run on everybody's conversations inside bounds.

    source = chosen(alone, config, older)        # which of a model's files has it
    template = ChatTemplate(source)              # or TemplateError
    text = template.render(messages, names)      # or TemplateError: refused by the template, or out of bounds

What transformers' `apply_chat_template` renders is rendered character for character.

Jinja's sandbox keeps a program from reaching Python; it bounds neither how long it runs nor how much it makes. Here a
program has a budget of work for each rendering, in nanoseconds as it were: a turn of a loop, a branch and a macro cost
what stands in them, everything that makes or compares text costs as many units as it has characters. So there is no
program that runs for more than a fraction of a second or makes more than `MAX_CHARACTERS`, whatever it nests, doubles
or repeats; and nothing is worked out while a program is compiled.
"""

from libs.chat_template.budget import MAX_CHARACTERS
from libs.chat_template.chosen import chosen
from libs.chat_template.template import ChatTemplate, TemplateError

__all__ = ["MAX_CHARACTERS", "ChatTemplate", "TemplateError", "chosen"]
