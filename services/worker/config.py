"""Settings of a worker."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from libs.config import ServiceSettings


class TorchAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A LoRA adapter, served as a model version of its own."""

    base: str
    """The model version whose weights it adapts."""
    folder: str
    """Where its files are, in PEFT format."""


class TorchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The torch engine."""

    device: str = "auto"
    """"cpu", "cuda", or "auto": the GPU if there is one."""
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """How weights are held: int8 is weight-only, one scale per output channel; keys and values are float32, or bfloat16
    with bfloat16 weights."""
    threads: int = 1
    """torch's threads for one operation."""
    block_size: int = 16
    """Tokens per KV block."""
    total_blocks: int = 1024
    """KV blocks, shared by all models."""
    kv_bytes: int = 0
    """Memory for KV blocks; 0 takes as much as total_blocks need."""
    host_bytes: int = 0
    """Host memory for blocks of preempted sequences and for prefixes that the device has no room for."""
    disk_bytes: int = 0
    """Disk space below that; its content is checked before use and vanishes with the process."""
    spill_folder: str = ""
    """Where the disk space is taken; empty is the system's folder for temporary files."""
    prefix_cache: bool = True
    """Keep the blocks of prompts for later ones that begin alike (within a tenant)."""
    public_prefixes: dict[str, list[str]] = {}
    """Beginnings of prompts, as text by model version, whose blocks all tenants share."""
    tenant_share: float = 1.0
    """Share of the blocks that one tenant may hold while it has more than one sequence, and of cached ones."""
    preemption: Literal["swap", "recompute"] = "swap"
    """What becomes of a preempted sequence's memory; without lower tiers it is always computed anew."""
    max_running: int = 32
    """Sequences that run at once."""
    max_step_tokens: int = 256
    """Most tokens computed in one step; bounds how long running sequences wait for a new one's prompt."""
    itl_target: float = 0.0
    """Seconds that a step may take while sequences decode: prompts get what is left of it; 0 is off."""
    adapters: dict[str, TorchAdapter] = {}
    """LoRA adapters by the model version that they are served as; loaded when first asked for."""
    max_adapters: int = 8
    """Adapters of one model that are in memory at once."""
    weight_bytes: int = 0
    """Memory for the weights of all models; 0 is no bound. Models that do not fit are loaded when asked for, in place
    of those used least recently."""
    min_residency: float = 10.0
    """Seconds that a loaded model stays at least."""
    pinned: list[str] = []
    """Models that always stay."""
    standby: list[str] = []
    """Models to keep warm while there is room, the most important first."""
    weight_cache: str = ""
    """Folder of the local weight cache; empty is none."""
    weight_cache_bytes: int = 10_737_418_240
    """Its bound."""
    require_manifest: bool = True
    """Refuse model folders whose files are not what their manifest.json says."""


class SimulatedFaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is wrong with one version on the simulated engine, for studies of rollouts. A model folder may say the same
    in a `simulated.json`, field by field; the settings win."""

    error_rate: float | None = None
    """Share of its sequences, 0 to 1, that end with an error in place of one of their first eight tokens."""
    ttft_factor: float | None = None
    """Its prompts take so many times as long; at least 1. Without step costs there is nothing to multiply."""
    itl_factor: float | None = None
    """Its tokens come so many times as slowly; at least 1."""
    garble: bool | None = None
    """Its tokens are others than those that every other version gives for the same input."""


class SimulatedOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The simulated engine. All costs 0: steps take no time."""

    vocabulary: int = 0
    """Token ids are below it; 0 takes it from the config.json of the first model folder, or 4096 without one."""
    first_token: int = 300
    """Generated ids are at least this (at most half the vocabulary): below lie special tokens and single bytes."""
    end_of_sequence: bool = False
    """Draw the model's end-of-sequence tokens too; otherwise sequences run to max_tokens."""
    step_interval: float = 0.0
    """Seconds per token for every running sequence (0.02: a paced bench); 0 leaves the pace to the costs below."""
    prefill_tokens_per_second: float = 0.0
    """0 costs nothing."""
    step_base: float = 0.0
    """Seconds that any step costs."""
    step_per_sequence: float = 0.0
    """Seconds that each decoding sequence adds to a step."""
    step_per_context_token: float = 0.0
    """Seconds for each token that a decoding sequence attends to."""
    step_per_padded_token: float = 0.0
    """Seconds for each token that a decoding sequence would attend to if all were as long as the longest."""
    step_per_prompt: float = 0.0
    """Seconds for each prompt of which a step computes a part."""
    prefill_per_attended_token: float = 0.0
    """Seconds for each token that a prompt token attends to."""
    calibration: str = ""
    """A file of `weir calibrate`; its costs stand in place of those above, its sizes are only told there."""
    block_size: int = 16
    """Tokens per KV block."""
    total_blocks: int = 16384
    """KV blocks."""
    max_running: int = 256
    """Sequences that run at once."""
    max_context: int = 0
    """Tokens of prompt and output; 0 takes it from the first model folder's config.json, or 4096 without one."""
    max_step_tokens: int = 8192
    """Most tokens computed in one step: one for each decoding sequence, the rest for prompts."""
    seed: int = 0
    """Of the draws."""
    versions: dict[str, SimulatedFaults] = {}
    """Faults by model version."""
    preemptive: bool = False
    """As the torch engine: sequences hold the blocks of the tokens that they have, and are preempted, the least urgent
    first, and computed anew when blocks run out. False: each holds from its start what its longest output needs."""


class TensorrtOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The TensorRT-LLM engine; it serves exactly one model."""

    block_size: int = 32
    """Tokens per KV block (tokens_per_block)."""
    total_blocks: int = 4096
    """KV blocks (max_tokens of KvCacheConfig / block_size)."""
    max_running: int = 64
    """max_batch_size."""
    max_context: int = 8192
    """max_seq_len."""
    tensor_parallel: int = 1
    """GPUs that share the model."""
    require_manifest: bool = True
    """Refuse model folders whose files are not what their manifest.json says."""


class VllmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The vLLM engine; it serves exactly one model, and LoRA adapters of it."""

    adapters: dict[str, str] = {}
    """LoRA adapters (PEFT format): model version to folder. Loaded when first asked for."""
    block_size: int = 32
    """Tokens per KV block; on a CPU a multiple of 32."""
    total_blocks: int = 0
    """KV blocks; 0 makes as many as kv_cache_bytes hold."""
    kv_cache_bytes: int = 1_073_741_824
    """Memory for KV blocks; 0 takes memory_share of the device for everything."""
    memory_share: float = 0.9
    """See kv_cache_bytes."""
    max_running: int = 64
    """Sequences that run at once."""
    max_context: int = 0
    """Tokens of prompt and output; 0 takes the model's own."""
    max_step_tokens: int = 2048
    """Most tokens computed in one step."""
    max_adapters: int = 4
    """Adapters in one step."""
    max_logprobs: int = 20
    """Most alternatives that a request may ask for."""
    tensor_parallel: int = 1
    """GPUs that share the model."""
    dtype: str = "auto"
    """"auto" is the checkpoint's; "float32", "bfloat16", "float16"."""
    enforce_eager: bool = False
    """True compiles nothing: a start in seconds, slower steps."""
    threads: int = 1
    """Of the processor, on a CPU."""
    require_manifest: bool = True
    """Refuse model folders whose files are not what their manifest.json says."""


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker needs beside the common settings."""

    pool: str = "default"
    """The admission pool it belongs to."""
    engine: str = "torch"
    """"torch", "simulated", "vllm" or "tensorrt_llm"."""
    engine_isolation: Literal["process", "thread"] = "process"
    """Where the torch engine runs: in a process of its own, or in a thread of the worker's (docs/adr/0006)."""
    engine_restart_limit: int = 5
    """Failures of the engine within the window after which it is started again; one more ends the worker."""
    engine_restart_window: float = 60.0
    """Seconds that the engine ran; the time of its starts does not count."""
    engine_restart_delay: float = 0.25
    """Seconds before the engine is started again; doubled with each failure in the window, at most 10 s."""
    engine_silence: float = 60.0
    """Seconds without a step, while sequences run or wait, after which an engine counts as failed."""
    engine_fault_limit: Annotated[int, msgspec.Meta(ge=1)] = 8
    """Errors in a row that the engine is to blame for, without a token of any sequence between them, after which it
    counts as failed."""
    models: dict[str, str] = msgspec.field(default_factory=dict)
    """Models to serve from the start, whatever the registry wants: model version ("weir-fast@1") to its folder. Without
    a folder the simulated engine makes the model up; the others leave it out, so that a profile can take a model away
    from a worker."""
    blobs: str = ""
    """Where model files lie (`file:///path`, `s3://bucket/prefix`): with it the worker loads what the registry wants in
    its pool; empty: only `models`."""
    weight_cache: str = ""
    """Folder of the local weight cache, which workers of one machine may share; empty: `weights` in the state
    directory. Engines read their models from it."""
    weight_cache_bytes: int = 10_737_418_240
    """Its bound."""
    require_signatures: bool = True
    """Refuse versions that are not signed, or whose namespace has no trust policy."""
    min_residency: float = 30.0
    """Seconds that a version stays loaded at least, and after it was wanted last: requests may be on their way."""
    torch: TorchOptions = TorchOptions()
    """For engine "torch"."""
    simulated: SimulatedOptions = SimulatedOptions()
    """For engine "simulated"."""
    tensorrt_llm: TensorrtOptions = TensorrtOptions()
    """For engine "tensorrt_llm"."""
    vllm: VllmOptions = VllmOptions()
    """For engine "vllm"."""
    admission: tuple[str, ...] = ()
    """Addresses of admission; empty takes every admission endpoint in the registry."""
    require_grants: bool = True
    """False runs whatever an authenticated peer submits: only for measuring a worker without admission."""
    max_waiting: int = 512
    """Sequences that may wait inside the engine beyond those that run; one more is refused."""
    max_unread_tokens: int = 262_144
    """Tokens kept for a gateway that does not read; beyond, its stream is ended and its sequences are cancelled."""
    max_ungranted: int = 8
    """Sequences up to which work without a grant is taken while every admission process is away."""
    max_embed_inputs: int = 256
    """Inputs of one Embed call."""
    key_grace: float = 10.0
    """Seconds that a lost capacity stream's grant key is still accepted: longer than a grant lives."""
    report_interval: float = 0.01
    """Shortest time between two capacity reports, in seconds."""
    drain_grace: float = 7.0
    """How long running sequences may go on after SIGTERM; at least two seconds below drain_seconds. What is left is
    cut: gateways continue it elsewhere."""
    registry_wait: float = 3.0
    """How long the start waits for the registry, to compare its digests with the model folders."""
