"""Binds a caller's parameters to a model's defaults and a tenant's limits. Every refusal names the field."""

from __future__ import annotations

from typing import TypeVar

from libs.catalog import ModelLimits
from libs.errors import Reason, WeirError
from services.gateway.policy.spec import BoundParameters, Parameters

_N = TypeVar("_N", int, float)
MAX_CHOICES = 8
MAX_LOGPROBS = 20
MAX_STOPS = 4
MAX_BIASES = 1024
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 128
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 64
MAX_SEED = 2**63 - 1
MAX_TOKENS = 2**31 - 1
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 1, MAX_TOKENS),
    ("temperature", 0.0, 2.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.01, 10.0),
    ("top_k", 0, 2**31 - 1),
    ("n", 1, MAX_CHOICES),
    ("logprobs", 0, MAX_LOGPROBS),
    ("seed", -MAX_SEED - 1, MAX_SEED),
    ("min_tokens", 0, MAX_TOKENS),
)
ROLES = ("system", "developer", "user", "assistant", "tool")
NO_OUTPUT = BoundParameters(max_tokens=0)
"""Of a request that generates nothing."""


def invalid(field: str, message: str) -> WeirError:
    """The error for a field with a bad value."""
    return WeirError(Reason.INVALID_REQUEST, f"{field}: {message}", limit=field)


def known_role(role: str, position: int) -> str:
    """The role of a message, as templates know it. They put it into the prompt as it is, between a turn's marks: any
    other word could spell a special token there, such as "end".

    :raises WeirError: INVALID_REQUEST.
    """
    if role not in ROLES:
        raise invalid(f"messages[{position}].role", f"must be one of {', '.join(ROLES)}")
    # OpenAI's newer name for the same thing; open models were trained with the older one.
    return "system" if role == "developer" else role


def check_parameters(given: Parameters) -> None:
    """Check every value that can be judged without the model.

    :raises WeirError: INVALID_REQUEST naming the first bad field.
    """
    for name, low, high in _RANGES:
        value = getattr(given, name)
        # NaN fails every comparison; integers may be too large to become floats.
        if value is not None and not low <= value <= high:
            field = given.max_tokens_field if name == "max_tokens" else name
            raise invalid(field, f"must be at least {low} and at most {high}")
    if len(given.stop) > MAX_STOPS:
        raise invalid("stop", f"at most {MAX_STOPS} strings")
    for stop in given.stop:
        if not 0 < len(stop) <= MAX_STOP_CHARS:
            raise invalid("stop", f"each string must have 1 to {MAX_STOP_CHARS} characters")
    if len(given.logit_bias) > MAX_BIASES:
        raise invalid("logit_bias", f"at most {MAX_BIASES} tokens")
    if not all(-100.0 <= bias <= 100.0 for bias in given.logit_bias.values()):
        raise invalid("logit_bias", "must be at least -100.0 and at most 100.0")
    if len(given.stop_token_ids) > MAX_STOP_IDS:
        raise invalid("stop_token_ids", f"at most {MAX_STOP_IDS} token ids")
    if not all(0 <= token < 2**32 for token in given.stop_token_ids):
        raise invalid("stop_token_ids", "must be token ids")
    if len(given.bad_words) > MAX_BAD_WORDS:
        raise invalid("bad_words", f"at most {MAX_BAD_WORDS} words")
    if not all(word.strip() and len(word) <= MAX_BAD_WORD_CHARS for word in given.bad_words):
        raise invalid("bad_words", f"each word must have 1 to {MAX_BAD_WORD_CHARS} characters that are not all blank")


def bind_parameters(
    given: Parameters, limits: ModelLimits, prompt_tokens: int, bad_words: tuple[tuple[int, ...], ...] = ()
) -> BoundParameters:
    """Apply defaults and limits. `bad_words` are the given ones in the version's tokens.

    An explicit `max_tokens` that does not fit is refused; a missing one becomes the default, cut to what fits.

    :raises WeirError: CONTEXT_LENGTH_EXCEEDED when prompt plus output do not fit, INVALID_REQUEST when the tenant's
        output limit is exceeded or `min_tokens` is more than the output can have.
    """
    context = min(limits.context_length, limits.max_context or limits.context_length)
    room = context - prompt_tokens
    if room < 1:
        raise WeirError(
            Reason.CONTEXT_LENGTH_EXCEEDED,
            f"the prompt has {prompt_tokens} tokens and the context holds {context}, at least one of them for output",
            limit="context_length",
        )
    if given.max_tokens is None:
        max_tokens = min(limits.default_max_tokens or room, room, limits.max_output or room)
    else:
        max_tokens = given.max_tokens
        if limits.max_output and max_tokens > limits.max_output:
            raise invalid(given.max_tokens_field, f"the tenant's limit is {limits.max_output}")
        if max_tokens > room:
            raise WeirError(
                Reason.CONTEXT_LENGTH_EXCEEDED,
                f"prompt ({prompt_tokens}) plus {given.max_tokens_field} ({max_tokens}) exceed the context ({context})",
                limit=given.max_tokens_field,
            )
    if given.min_tokens is not None and given.min_tokens > max_tokens:
        raise invalid("min_tokens", f"the output has at most {max_tokens} tokens")
    return BoundParameters(
        max_tokens=max_tokens,
        temperature=_default(given.temperature, limits.default_temperature),
        # Of no probability at all the most likely token is left, as OpenAI means it; engines know that by another name.
        top_p=1.0 if given.top_p == 0 else _default(given.top_p, limits.default_top_p or 1.0),
        top_k=1 if given.top_p == 0 else _default(given.top_k, limits.default_top_k),
        min_p=_default(given.min_p, limits.default_min_p),
        repetition_penalty=_default(given.repetition_penalty, limits.default_repetition_penalty or 1.0),
        presence_penalty=given.presence_penalty or 0.0,
        frequency_penalty=given.frequency_penalty or 0.0,
        stop=given.stop,
        seed=None if given.seed is None else given.seed % 2**64,  # as the wire has it; the same for the same
        n=given.n or 1,
        logprobs=given.logprobs,
        logit_bias=given.logit_bias,
        min_tokens=given.min_tokens or 0,
        stop_token_ids=given.stop_token_ids,
        bad_words=bad_words,
        ignore_eos=given.ignore_eos,
        structure=given.structure,
    )


def _default(value: _N | None, default: _N) -> _N:
    return default if value is None else value
