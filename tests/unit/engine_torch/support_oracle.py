"""The oracle: what transformers answers, and the cases in which the engine must answer the same.

A `World` holds random checkpoints of a few architectures with LoRA adapters, and works out once what transformers'
`generate` makes of every prompt. A `Case` is a way to run the engine; `check` runs all prompts through it and compares.
`make test` runs some of the cases over few prompts, `make test-engine` all of them over 200 prompts per architecture.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import support_checkpoints as support
import tokenizers
import torch
import transformers
from support_checkpoints import Collected

from libs import families
from libs.clock import ManualClock
from services.worker.engines.port import FinishReason, SequenceRequest
from services.worker.engines.torch_engine import TorchCore
from services.worker.engines.torch_engine.settings import AdapterSource

MOST_TOKENS = 24
STEP_SECONDS = 0.1
LOGPROB_TOLERANCE = 1e-4
NEAR_TIE = 1e-4
"""Two logits this close, of some tens in size, differ by less than what float32 sums of another order differ by."""

NEAR_TIES = 0.005
"""The share of answers that may differ behind a near-tie."""

WIDE = {"hidden_size": 64, "intermediate_size": 96}
"""Four heads of 16, as wide as the compiled attention needs them."""

ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}  # fmt: skip

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2@1": ("llama", {**WIDE, "num_key_value_heads": 4}),
    "llama3@1": ("llama", {**WIDE, "num_key_value_heads": 2, "tie_word_embeddings": True, "rope_parameters": ROPE}),
    "qwen2@1": ("qwen2", {**WIDE, "num_key_value_heads": 2}),
    "narrow@1": ("llama", {"num_hidden_layers": 3, "attention_bias": True, "mlp_bias": True}),
}
"""By name: the kind of checkpoint, and how it differs. The narrow one has heads of 8, for attention in plain torch."""


def longrope(frequencies: int, **changes: Any) -> dict[str, Any]:
    """A rotary embedding that divides each frequency by a factor of its own."""
    factors = {
        f"{name}_factor": [by**index for index in range(frequencies)] for name, by in (("short", 1.1), ("long", 1.4))
    }
    return {"rope_type": "longrope", "rope_theta": 10000.0, **factors, **changes}


HEADS = {"num_key_value_heads": 2, "head_dim": 16}
GEMMA = {**WIDE, **HEADS, "pad_token_id": 0, "query_pre_attn_scalar": 40}
"""The score is not what the width of a head makes it."""

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral@1": ("mistral", {**WIDE, **HEADS, "sliding_window": 19}),
    "qwen2-sliding@1": ("qwen2", {"use_sliding_window": True, "sliding_window": 10, "max_window_layers": 1}),
    "phi3@1": ("Phi3ForCausalLM", {**WIDE, "num_key_value_heads": 2, "sliding_window": 19, "pad_token_id": 0}),
    "phi4-mini@1": (
        "Phi3ForCausalLM",
        {
            **WIDE,
            "pad_token_id": 0,
            "tie_word_embeddings": True,
            "original_max_position_embeddings": 128,
            "rope_parameters": longrope(6, partial_rotary_factor=0.75),
        },
    ),
    "gemma2@1": ("Gemma2ForCausalLM", {**GEMMA, "sliding_window": 19, "attn_logit_softcapping": 3.0}),
    "gemma3@1": (
        "Gemma3ForCausalLM",
        {**GEMMA, "num_hidden_layers": 3, "sliding_window": 19, "sliding_window_pattern": 3},
    ),
    "granite@1": (
        "GraniteForCausalLM",
        {
            **WIDE,
            "num_key_value_heads": 2,
            "attention_bias": True,
            "embedding_multiplier": 6.0,
            "logits_scaling": 4.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.1,
        },
    ),
    "olmo2@1": ("Olmo2ForCausalLM", {**WIDE, "num_key_value_heads": 2}),
    "smollm3@1": (
        "SmolLM3ForCausalLM",
        {
            **WIDE,
            "num_key_value_heads": 2,
            "no_rope_layer_interval": 2,
            "pad_token_id": 0,
            "use_sliding_window": True,
            "sliding_window": 19,
        },
    ),
    "qwen3@1": ("Qwen3ForCausalLM", {**WIDE, **HEADS, "tie_word_embeddings": True}),
}
"""The same for the other families; a row or more of each."""

ADAPTERS = {"all": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], "some": ["q_proj",
            "v_proj", "down_proj"], "mlp": ["gate_proj", "up_proj"]}  # fmt: skip
"""By name: the layers that an adapter of every architecture changes. `llama2+all@1` is one of llama2's."""

FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj",
         "up_proj": "gate_up_proj"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """What transformers generates greedily: `tokens`, after each of which it might have taken another one that is
    `margins` (in logits) less likely; and the natural-log probabilities of all tokens at each place, (tokens,
    vocabulary). `stopped` says that an end of sequence followed; the end has a margin as well."""

    tokens: list[int]
    logprobs: torch.Tensor
    margins: list[float]
    stopped: bool

    def cut(self, most: int) -> tuple[list[int], bool]:
        """The tokens and whether it stopped, had it been allowed `most`."""
        return self.tokens[:most], self.stopped and len(self.tokens) < most


class World:
    """Checkpoints, adapters and prompts under `root`; answers are computed when first asked for, and kept."""

    def __init__(self, root: Path, *, prompts: int, adapted: int) -> None:
        """`prompts` for each architecture, the first `adapted` of which are for its adapters too."""
        transformers.utils.logging.disable_progress_bar()
        source = random.Random(20)
        self.prompts = _prompts(source, prompts)
        self.limits = [source.randint(2, MOST_TOKENS) for _ in range(prompts)]
        self.adapted = adapted
        self._root = root
        self._models: dict[str, Any] = {}
        self._answers: dict[tuple[str, int], Answer] = {}
        self._made: set[str] = set()

    def folder(self, model: str) -> Path:
        """The checkpoint of an architecture, or the PEFT adapter `base+adapter@version`; made when first asked for."""
        path = self._root / model
        if model not in self._made:
            path.mkdir()
            if "+" in model:
                self._models[model] = self._make_adapter(model, path)
            else:
                kind, changes = (ARCHITECTURES | FAMILIES)[model]
                seed = [*ARCHITECTURES, *FAMILIES].index(model)
                self._models[model] = support.save_checkpoint(path, kind, seed=seed, **changes)
                write_tokenizer(path)
            support.write_manifest(path, model)
            self._made.add(model)
        return path

    def answer(self, model: str, index: int) -> Answer:
        """What transformers makes of prompt `index`; for an adapter, with the weights it is merged into."""
        if (model, index) not in self._answers:
            self.folder(model)
            self._answers[model, index] = _generate(self._models[model], self.prompts[index])
        return self._answers[model, index]

    def public_text(self) -> str:
        """The beginning that some of the prompts share, as text."""
        return " ".join(f"t{token}" for token in self.prompts[0][:12])

    def core(
        self, models: Sequence[str], adapters: Sequence[str] = (), clock: ManualClock | None = None, **changes: Any
    ) -> TorchCore:
        """An engine over these."""
        sources = {name: AdapterSource(base=base_of(name), folder=self.folder(name)) for name in adapters}
        return support.make_core({model: self.folder(model) for model in models}, clock, adapters=sources, **changes)

    def _make_adapter(self, model: str, path: Path) -> Any:
        import peft

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PEFT's own making, about things that adapters of ours do not have
            base = transformers.AutoModelForCausalLM.from_pretrained(self.folder(base_of(model)), dtype=torch.float32)
            targets = ADAPTERS[model.partition("+")[2].partition("@")[0]]
            if families.FAMILIES[base.config.architectures[0]].fused:
                targets = sorted({FUSED.get(target, target) for target in targets})
            config = peft.LoraConfig(task_type="CAUSAL_LM", r=2 + len(targets), lora_alpha=8, target_modules=targets)
            adapted = peft.get_peft_model(base, config)
            torch.manual_seed(len(targets))
            for name, parameter in adapted.named_parameters():
                if "lora_" in name:
                    torch.nn.init.normal_(parameter, std=0.15)
            adapted.save_pretrained(path)
            return adapted.merge_and_unload().eval()


def base_of(adapter: str) -> str:
    """The architecture that an adapter is for."""
    return f"{adapter.partition('+')[0]}@{adapter.partition('@')[2]}"


def write_tokenizer(folder: Path) -> None:
    """A tokenizer to which `t7` is token 7."""
    words = {f"t{token}": token for token in range(support.VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def _prompts(source: random.Random, count: int) -> list[list[int]]:
    """Half of them begin as others do; lengths from 1 to 70."""

    def some(most: int) -> list[int]:
        return [source.randrange(3, support.VOCABULARY) for _ in range(source.randint(1, most))]

    begun = [[source.randrange(3, support.VOCABULARY) for _ in range(length)] for length in (30, 16, 11)]
    return [begun[index % 6 // 2] + some(20) if index % 2 == 0 else some(70) for index in range(count)]


def _generate(model: Any, prompt: Sequence[int]) -> Answer:
    with torch.inference_mode():
        result = model.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=MOST_TOKENS,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        logits = torch.cat(result.logits)
        tokens = result.sequences[0, len(prompt) :].tolist()
        assert len(tokens) == len(logits)
        best = logits.topk(2).values
        stopped = tokens[-1] == support.EOS
        margins = (best[:, 0] - best[:, 1]).tolist()
        return Answer(tokens[:-1] if stopped else tokens, logits.log_softmax(dim=-1), margins, stopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A way to run the engine. `settings` change `TorchSettings`; `passes` is how often all prompts come; `choices`
    how many sequences each is submitted as; `salts` how many tenants send them; `joins` at random while others run,
    some to be cancelled; `adapters` of every architecture that take turns with it; `together` all architectures in one
    engine. `proof` names what must have been counted by the end (see `Witness`): the case would otherwise show
    nothing."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    passes: int = 1
    choices: int = 1
    salts: int = 1
    joins: bool = False
    adapters: Sequence[str] = ()
    together: bool = False
    public: bool = False
    proof: Sequence[str] = ()


TIGHT = {"total_blocks": 26, "max_running": 12}
"""Memory for little more than the longest of the sequences, which may need 24 blocks of four tokens."""

RECOMPUTE = {"preemption": "recompute"}
PLENTY = 1 << 22
FEW = 1 << 16
"""Bytes: 32 blocks of the largest architecture, 64 of two of the others."""

CASES: Mapping[str, Case] = {
    "one after the other": Case(settings={"max_running": 1, "prefix_cache": False}),
    "whole prompts": Case(settings={"max_step_tokens": 512, "prefix_cache": False}),
    "chunks of prompts": Case(settings={"max_step_tokens": 17, "prefix_cache": False}),
    "a batch of 32, cached": Case(settings={"max_running": 32}, passes=2, proof=["hit"]),
    "chunks, cached": Case(settings={"max_step_tokens": 16}, passes=2, proof=["hit"]),
    "recomputed": Case(settings=TIGHT | RECOMPUTE | {"prefix_cache": False}, proof=["preempted"]),
    "recomputed, cached": Case(settings=TIGHT | RECOMPUTE, passes=2, proof=["preempted", "hit"]),
    "swapped to host": Case(
        settings=TIGHT | {"host_bytes": PLENTY, "prefix_cache": False}, proof=["swapped", "device to host",
        "host to device"],
    ),
    "swapped to disk": Case(
        settings=TIGHT | {"disk_bytes": PLENTY}, proof=["swapped", "device to disk", "disk to device"]
    ),
    "spilled to host": Case(
        settings=TIGHT | RECOMPUTE | {"host_bytes": PLENTY}, passes=2,
        proof=["device to host", "host to device", "hit", "preempted"],
    ),
    "spilled to host and disk": Case(
        settings=TIGHT | RECOMPUTE | {"host_bytes": FEW, "disk_bytes": PLENTY}, passes=2,
        proof=["device to host", "host to disk", "disk to device", "hit", "preempted"],
    ),
    "swapped and spilled": Case(
        settings=TIGHT | {"host_bytes": FEW, "disk_bytes": FEW * 4, "max_step_tokens": 16}, passes=2, joins=True,
        proof=["swapped", "host to disk", "disk to device", "hit", "cancelled"],
    ),
    "joining and leaving": Case(settings={"max_running": 5, "max_step_tokens": 12}, joins=True, proof=["cancelled"]),
    "choices of a prompt": Case(settings={"max_running": 9}, choices=3, proof=["device to device", "hit"]),
    "choices, tight": Case(
        settings=TIGHT | {"host_bytes": PLENTY}, choices=3, proof=["device to device", "preempted"]
    ),
    "tenants with a public prefix": Case(settings={"tenant_share": 0.5}, salts=3, passes=2, public=True, proof=["hit"]),
    "small tiers for each tenant": Case(
        settings=TIGHT | {"tenant_share": 0.4, "host_bytes": FEW}, salts=2, passes=2, proof=["hit", "host to device"]
    ),
    "larger blocks": Case(settings={"block_size": 16, "total_blocks": 48}, passes=2, proof=["hit"]),
    "adapters in one batch": Case(adapters=("all", "some", "mlp"), passes=2, proof=["hit"]),
    "adapters, tight": Case(
        settings=TIGHT | {"host_bytes": PLENTY, "max_step_tokens": 14}, adapters=("all", "some"), passes=2,
        proof=["swapped", "hit"],
    ),
    "adapters push one another out": Case(
        settings={"max_adapters": 1, "min_residency": 0.0}, adapters=("all", "some"), passes=2, proof=["read again"]
    ),
    "all models in one worker": Case(together=True, settings={"max_step_tokens": 40}, passes=2, proof=["hit"]),
    "models push one another out": Case(
        together=True, settings={"weight_bytes": 450_000, "min_residency": 0.0, "host_bytes": PLENTY} | TIGHT,
        adapters=("some",), passes=2, proof=["read again", "hit"],
    ),
}  # fmt: skip

SMALL = (
    "chunks, cached", "recomputed, cached", "swapped and spilled", "choices of a prompt", "adapters in one batch",
    "models push one another out",
)  # fmt: skip
"""The cases of `make test`; between them they reach most of what the others do."""


def runs(names: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Each case with the architectures it is run on: every one alone, or all together."""
    alone = [(name, (model,)) for name in names if not CASES[name].together for model in ARCHITECTURES]
    return alone + [(name, tuple(ARCHITECTURES)) for name in names if CASES[name].together]


def label(value: str | tuple[str, ...]) -> str:
    """How a test names a case, or the architectures it is run on."""
    return value if isinstance(value, str) else "+".join(each.partition("@")[0] for each in value)


class Witness:
    """Counts what happens inside an engine: copies between tiers, and models and adapters read while it runs."""

    def __init__(self, core: TorchCore) -> None:
        self.counts: Counter[str] = Counter()
        self._core = core
        parts = core._parts
        carry_out, set_present = parts.models.memory.carry_out, parts.scheduler.set_present
        present: Counter[str] = Counter(parts.models.shelf.runnable)

        def carried(moves):
            self.counts.update(f"{move.source[0].name} to {move.target[0].name}".lower() for move in moves)
            carry_out(moves)

        def came(name):
            present[name] += 1
            self.counts["read again"] += present[name] > 1
            set_present(name)

        parts.models.memory.carry_out, parts.scheduler.set_present = carried, came

    def finish(self) -> Counter[str]:
        """All counts; checks that the engine is clean."""
        scheduler, capacity = self._core._parts.scheduler, self._core.capacity()
        assert capacity.free_blocks == self._core.info.total_blocks
        assert self._core._samplers == {}
        self.counts |= {"hit": capacity.prefix_hit_total, "preempted": capacity.preemptions_total,
                        "swapped": scheduler.swaps}  # fmt: skip
        return self.counts


def check(world: World, name: str, models: Sequence[str]) -> int:
    """Run a case and compare all that comes out; returns how many answers differ behind a near-tie."""
    case = CASES[name]
    adapters = [f"{model.partition('@')[0]}+{each}@1" for model in models for each in case.adapters]
    changes = {"max_step_tokens": 64, **case.settings}
    if case.public:
        changes["public_prefixes"] = {model: [world.public_text()] for model in models}
    clock = ManualClock()
    core = world.core(models, adapters, clock, **changes)
    witness = Witness(core)
    near_ties = 0
    for turn in range(case.passes):
        asked, wanted = _requests(world, case, [*models, *adapters], turn)
        collected, cancelled = _serve(core, asked, random.Random(turn), clock, joins=case.joins)
        assert collected.errors == {}
        assert collected.finish.keys() == wanted.keys()
        near_ties += sum(
            not agrees(collected, handle, world.answer(*wanted[handle]), limit=world.limits[wanted[handle][1]],
                       cancelled=handle in cancelled)
            for handle in wanted
        )  # fmt: skip
        witness.counts["cancelled"] += sum(end == FinishReason.CANCELLED for end in collected.finish.values())
    counts = witness.finish()
    core.close()
    missing = [each for each in case.proof if not counts[each]]
    assert not missing, f"the case shows nothing: no {missing} among {dict(counts)}"
    return near_ties


def agrees(collected: Collected, handle: int, answer: Answer, *, limit: int, cancelled: bool = False) -> bool:
    """Whether a sequence got what transformers answers. False where it differs and may: from a place on at which the
    two best tokens are as good as equal. Fails where it must not."""
    tokens, finish = collected.tokens[handle], collected.finish[handle]
    wanted, stopped = answer.cut(limit)
    expected_finish = FinishReason.STOP if stopped else FinishReason.LENGTH
    left_early = cancelled and finish == FinishReason.CANCELLED
    if left_early:
        wanted = wanted[: len(tokens)]
    same = next((i for i, (ours, theirs) in enumerate(zip(tokens, wanted, strict=False)) if ours != theirs),
                min(len(tokens), len(wanted)))  # fmt: skip
    _check_logprobs(collected, handle, answer, same)
    if tokens == wanted and (left_early or finish == expected_finish):
        return True
    where = f"sequence {handle} at {same}: {tokens} instead of {wanted}, {finish}"
    assert same < len(answer.margins), where
    assert answer.margins[same] < NEAR_TIE, where
    return False


def _check_logprobs(collected: Collected, handle: int, answer: Answer, count: int) -> None:
    entries = collected.logprobs.get(handle, [])
    assert len(entries) in (0, len(collected.tokens[handle]))
    for place, entry in enumerate(entries[:count]):
        row = answer.logprobs[place]
        assert abs(entry.logprob - row[answer.tokens[place]].item()) < LOGPROB_TOLERANCE
        best = row.topk(len(entry.top)).values.tolist()
        for (token, logprob), wanted in zip(entry.top, best, strict=True):
            assert abs(logprob - wanted) < LOGPROB_TOLERANCE
            assert abs(logprob - row[token].item()) < LOGPROB_TOLERANCE


def _requests(
    world: World, case: Case, models: Sequence[str], turn: int
) -> tuple[list[list[SequenceRequest]], dict[int, tuple[str, int]]]:
    """What is submitted, in batches; and for every handle whose answer to which prompt is wanted."""
    batches: list[list[SequenceRequest]] = []
    wanted: dict[int, tuple[str, int]] = {}
    per_base: dict[str, list[str]] = defaultdict(list)
    for model in models:
        per_base[base_of(model) if "+" in model else model].append(model)
    count = world.adapted if case.adapters else len(world.prompts)
    for index in range(count):
        for variants in per_base.values():
            batch = []
            for _ in range(case.choices):
                handle = len(wanted)
                model = variants[(index + turn) % len(variants)]
                wanted[handle] = model, index
                batch.append(
                    support.request(
                        handle, world.prompts[index], model=model, max_tokens=world.limits[index],
                        logprobs=None if index % 3 == 2 else index % 3 * 4, priority=index % 2,
                        cache_salt=bytes([65 + index % case.salts]), group=1 if case.choices > 1 else 0,
                    )
                )  # fmt: skip
            batches.append(batch)
    return batches, wanted


def _serve(
    core: TorchCore,
    batches: Sequence[list[SequenceRequest]],
    source: random.Random,
    clock: ManualClock,
    *,
    joins: bool,
) -> tuple[Collected, set[int]]:
    """Run them; returns what came out and which were cancelled, if they were not done already."""
    collected, cancelled, waiting = Collected(), set[int](), list(batches)
    while waiting or core.has_work():
        for _ in range(source.randint(0, 3) if joins else len(waiting)):
            if waiting:
                core.add(waiting.pop(0))
        if joins and source.random() < 0.2:
            alive = sorted(collected.tokens.keys() - collected.finish.keys())
            if alive:
                cancelled.add(source.choice(alive))
                core.cancel(cancelled)
        if core.has_work():
            collected.take(core.step())
        clock.advance(STEP_SECONDS)
    return collected, cancelled
