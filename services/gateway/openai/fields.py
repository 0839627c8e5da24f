"""Every field of a request that the OpenAI API, vLLM or LiteLLM knows, and what becomes of it here. Plain data.

What is not in these tables is tolerated, as every server that speaks this API must. Sources: the typed parameters of
the package `openai` 3.54, vLLM 0.32's protocol (and the `guided_…` names of older ones), LiteLLM's completion().
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple


class Verdict(enum.Enum):
    """What becomes of a field."""

    HONOURED = "honoured"
    HARMLESS = "ignored"
    """It changes nothing of the answer, or nothing that there is."""
    REFUSED = "refused"
    """It would change the answer, or promises something, and is not offered."""


class Field(NamedTuple):
    """A field by its path in the body: `stream_options.include_usage`, `messages[].name`."""

    path: str
    of: str
    """Who defines it."""
    verdict: Verdict
    note: str = ""
    """How it is honoured, why it may be ignored, or what its caller is told beside its name."""
    allowed: tuple[Any, ...] = ()
    """Of a refused field: the values that ask for nothing, beside null."""

    @property
    def within(self) -> str:
        """The path of the object that it is a field of; empty for the body."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Its own."""
        return self.path.rpartition(".")[2]


OPENAI, VLLM, LITELLM, WEIR = "OpenAI", "vLLM", "LiteLLM", "Weir"
NOT_OFFERED = "not offered by this server"
_TEMPLATE = "the model's template"


def _honoured(of: str, paths: str, note: str = "") -> tuple[Field, ...]:
    return tuple(Field(path, of, Verdict.HONOURED, note) for path in paths.split())


def _harmless(of: str, paths: str, note: str) -> tuple[Field, ...]:
    return tuple(Field(path, of, Verdict.HARMLESS, note) for path in paths.split())


def _refused(of: str, paths: str, *allowed: Any, note: str = NOT_OFFERED) -> tuple[Field, ...]:
    return tuple(Field(path, of, Verdict.REFUSED, note, allowed) for path in paths.split())


_ANY = (
    *_honoured(OPENAI, "model"),
    *_honoured(OPENAI, "user", "quotas by user, sticky routing; `safety_identifier` goes before it"),
    *_honoured(OPENAI, "safety_identifier", "as `user`"),
    *_harmless(VLLM, "priority", "the plan orders requests"),
    *_harmless(VLLM, "request_id", "x-request-id names them"),
    *_harmless(VLLM, "mm_processor_kwargs", "there are only texts"),
    *_harmless(VLLM, "truncation_side", "nothing is truncated"),
    *_refused(VLLM, "truncate_prompt_tokens"),
    *_refused(VLLM, "cache_salt", note="prompts are cached apart by tenant, and no further"),
    # What LiteLLM's proxy takes beside the fields of the API.
    *_harmless(
        LITELLM, "timeout request_timeout stream_timeout force_timeout", "the caller's own: leaving ends a request"
    ),
    *_harmless(LITELLM, "num_retries max_retries cooldown_time retry_policy", "the caller's own retries"),
    *_harmless(LITELLM, "disable_fallbacks", "there are none"),
    *_harmless(LITELLM, "drop_params allowed_openai_params", "for other providers' APIs"),
    *_harmless(LITELLM, "tags litellm_metadata litellm_session_id litellm_trace_id litellm_call_id", "bookkeeping"),
    *_harmless(LITELLM, "id model_info proxy_server_request litellm_logging_obj verbose logger_fn", "bookkeeping"),
    *_harmless(LITELLM, "callbacks success_callback failure_callback litellm_disabled_callbacks", "bookkeeping"),
    *_harmless(LITELLM, "no-log turn_off_message_logging", "no record holds words"),
    *_harmless(LITELLM, "input_cost_per_token output_cost_per_token input_cost_per_second", "the price book's prices"),
    *_harmless(LITELLM, "output_cost_per_second rpm tpm max_budget budget_duration", "the plan's limits"),
    *_harmless(LITELLM, "cache caching ttl preset_cache_key", "answers are kept only where a plan says so, flagged"),
    *_harmless(LITELLM, "extra_headers headers default_headers ssl_verify shared_session client", "no call of ours"),
    *_refused(LITELLM, "fallbacks context_window_fallbacks content_policy_fallbacks default_fallbacks", [], {}),
    *_refused(LITELLM, "context_window_fallback_dict model_list additional_drop_params", [], {}),
    *_refused(LITELLM, "api_base base_url api_version api_key organization deployment_id custom_llm_provider"),
    *_refused(LITELLM, "azure_ad_token litellm_credential_name use_litellm_proxy", False),
    *_refused(LITELLM, "allowed_model_region region_name"),
    *_refused(LITELLM, "mock_response mock_tool_calls mock_timeout mock_delay", False, []),
    *_refused(LITELLM, "guardrails guardrail_config", [], {}),
)

_GENERATION = (
    *_ANY,
    *_honoured(OPENAI, "stream stream_options max_tokens temperature presence_penalty frequency_penalty n"),
    *_honoured(OPENAI, "top_p", "0 leaves the most likely token"),
    *_honoured(OPENAI, "seed", "any signed number of 64 bits"),
    *_honoured(OPENAI, "stop", "at most 4, of 256 characters"),
    *_honoured(OPENAI, "logit_bias", "at most 1,024 tokens"),
    *_honoured(OPENAI, "logprobs"),
    *_honoured(OPENAI, "response_format"),
    *_honoured(OPENAI, "service_tier", '"flex" may wait; the others change nothing'),
    *_honoured(OPENAI, "prompt_cache_key", "names the session, for sticky routing"),
    *_honoured(OPENAI, "metadata", "`session_id` names the session; the rest is the caller's own"),
    *_harmless(OPENAI, "store", "nothing is kept"),
    *_honoured(OPENAI, "stream_options.include_usage"),
    *_refused(OPENAI, "stream_options.include_obfuscation", False),
    *_refused(VLLM, "stream_options.continuous_usage_stats", False),
    *_honoured(OPENAI, "response_format.type", "`text`, `json_object`, `json_schema`; others are refused"),
    *_honoured(OPENAI, "response_format.json_schema response_format.json_schema.schema"),
    *_harmless(OPENAI, "response_format.json_schema.name response_format.json_schema.description", "for the caller"),
    *_harmless(OPENAI, "response_format.json_schema.strict", "schemas are always followed strictly"),
    *_honoured(VLLM, "top_k", "-1 and 0 are all"),
    *_honoured(VLLM, "min_p repetition_penalty ignore_eos"),
    *_honoured(
        VLLM, "min_tokens", "until then neither an end nor a stop; a structure that is complete ends all the same"
    ),
    *_honoured(VLLM, "stop_token_ids", "at most 128"),
    *_honoured(VLLM, "bad_words", "at most 128, of 64 characters; in the spelling that the tokenizer gives them"),
    *_honoured(VLLM, "structured_outputs guided_json guided_regex guided_choice", "one of these"),
    *_honoured(VLLM, "guided_grammar", "Lark, as llguidance reads it"),
    *_honoured(VLLM, "structured_outputs.json structured_outputs.regex structured_outputs.choice"),
    *_honoured(VLLM, "structured_outputs.json_object"),
    *_honoured(VLLM, "structured_outputs.grammar", "Lark, as llguidance reads it"),
    *_harmless(VLLM, "structured_outputs.disable_fallback guided_decoding_backend", "there is one way to follow them"),
    *_refused(VLLM, "structured_outputs.structural_tag structured_outputs.whitespace_pattern"),
    *_refused(VLLM, "structured_outputs.disable_any_whitespace", False),
    *_refused(VLLM, "structured_outputs.disable_additional_properties", False),
    *_refused(VLLM, "guided_whitespace_pattern"),
    *_harmless(VLLM, "spaces_between_special_tokens", "special tokens are not shown"),
    *_refused(VLLM, "skip_special_tokens", True),
    *_refused(VLLM, "include_stop_str_in_output", False),
    *_refused(VLLM, "use_beam_search early_stopping", False),
    *_refused(VLLM, "length_penalty", 1.0),
    *_refused(VLLM, "allowed_token_ids logits_processors logprob_token_ids", []),
    *_refused(VLLM, "prompt_logprobs thinking_token_budget repetition_detection"),
    *_refused(VLLM, "return_tokens_as_token_ids return_token_ids", False),
    *_refused(VLLM, "kv_transfer_params ec_transfer_params vllm_xargs", {}),
    *_harmless(LITELLM, "enable_json_schema_validation", "schemas are always followed strictly"),
    *_harmless(LITELLM, "merge_reasoning_content_in_choices", "there is no reasoning"),
    *_refused(LITELLM, "litellm_system_prompt prompt_id prompt_variables prompt_version prompt_label"),
    *_refused(LITELLM, "roles custom_prompt_dict initial_prompt_value final_prompt_value bos_token eos_token"),
    *_refused(LITELLM, "ensure_alternating_roles user_continue_message assistant_continue_message", False),
    *_refused(LITELLM, "vector_store_ids", []),
    *_refused(LITELLM, "thinking", {"type": "disabled"}),
)

CHAT = (
    *_GENERATION,
    *_honoured(OPENAI, "messages top_logprobs"),
    *_honoured(OPENAI, "max_completion_tokens", "the smaller of it and `max_tokens` binds"),
    *_harmless(OPENAI, "prediction", "for speed only"),
    *_harmless(OPENAI, "prompt_cache_retention prompt_cache_options", "for speed only"),
    *_refused(OPENAI, "modalities", ["text"]),
    *_refused(OPENAI, "verbosity", "medium"),
    *_honoured(
        OPENAI,
        "reasoning_effort",
        f"`reasoning_effort` of {_TEMPLATE}; `none` turns `enable_thinking` or `thinking` off and never fails",
    ),
    *_refused(OPENAI, "audio moderation web_search_options"),
    *_refused(OPENAI, "tools functions", []),
    *_refused(
        OPENAI, "tool_choice", "none", note="'tool_choice' is only allowed when 'tools' are specified: not offered here"
    ),
    *_refused(
        OPENAI,
        "parallel_tool_calls",
        note="'parallel_tool_calls' is only allowed when 'tools' are specified: not offered here",
    ),
    *_refused(OPENAI, "function_call", "none"),
    *_honoured(OPENAI, "messages[].role", "`system`, `developer`, `user`, `assistant`, `tool`"),
    *_honoured(
        OPENAI, "messages[].content", "a text or parts of type `text` and `refusal`; an assistant's may be null"
    ),
    *_honoured(OPENAI, "messages[].refusal", "an assistant's: text of its turn"),
    *_honoured(
        OPENAI,
        "messages[].name",
        f"of roles whose name {_TEMPLATE} shows; a result's may be left out, its call says it",
    ),
    *_honoured(
        OPENAI,
        "messages[].tool_call_id",
        f"a tool's; where {_TEMPLATE} tells results by their order, they come in that of the calls",
    ),
    *_honoured(
        VLLM,
        "messages[].reasoning messages[].reasoning_content",
        f"an assistant's, one for the other: what {_TEMPLATE} shows; "
        "before the last question it may be left out, as templates do",
    ),
    *_honoured(OPENAI, "messages[].tool_calls", f"an assistant's, at most 128, where {_TEMPLATE} shows calls"),
    *_honoured(OPENAI, "messages[].tool_calls[].id"),
    *_honoured(OPENAI, "messages[].tool_calls[].type", "`function`; others are refused"),
    *_honoured(OPENAI, "messages[].tool_calls[].function messages[].tool_calls[].function.name"),
    *_honoured(
        OPENAI,
        "messages[].tool_calls[].function.arguments",
        "a JSON object, as text or as it is: at most 1,024 values, 16 deep",
    ),
    *_refused(OPENAI, "messages[].function_call messages[].audio"),
    *_harmless(VLLM, "media_io_kwargs", "there are only texts"),
    *_harmless(VLLM, "include_reasoning", "there is no reasoning"),
    *_honoured(
        VLLM,
        "chat_template_kwargs",
        f"variables of {_TEMPLATE}, such as `enable_thinking` (true or false): at most 32, of 1,024 values, 16 deep",
    ),
    *_honoured(VLLM, "documents", f"where {_TEMPLATE} knows documents: at most 128, each of texts by name"),
    *_honoured(VLLM, "add_generation_prompt", f"false where {_TEMPLATE} makes a difference of it"),
    *_honoured(VLLM, "continue_final_message", "not beside `add_generation_prompt: true`, nor of calls"),
    *_refused(VLLM, "echo add_special_tokens", False),
    *_refused(VLLM, "chat_template"),
    *_refused(VLLM, "best_of", 1),
)

COMPLETION = (
    *_GENERATION,
    *_honoured(OPENAI, "prompt", "texts or token ids, 128 choices in all"),
    *_honoured(OPENAI, "best_of", "must equal `n`"),
    *_refused(OPENAI, "echo", False),
    *_refused(OPENAI, "suffix", ""),
    *_refused(VLLM, "add_special_tokens", True),
    *_refused(VLLM, "prompt_embeds"),
)

EMBEDDING = (
    *_ANY,
    *_honoured(OPENAI, "input", "texts or token ids"),
    *_honoured(OPENAI, "encoding_format"),
    *_refused(OPENAI, "dimensions"),
    *_harmless(LITELLM, "metadata", "bookkeeping"),
    *_refused(VLLM, "add_special_tokens normalize use_activation", True),
    *_refused(VLLM, "embed_dtype", "float32"),
    *_refused(VLLM, "endianness", "native", "little"),
    *_refused(LITELLM, "input_type"),
)


def refused(fields: Sequence[Field], within: str = "") -> tuple[Field, ...]:
    """Those of one object's fields that are refused."""
    return tuple(field for field in fields if field.verdict is Verdict.REFUSED and field.within == within)
