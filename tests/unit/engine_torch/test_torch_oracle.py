"""The torch engine against transformers: the same greedy tokens and log-probabilities, whatever else happens.

A part of the cases of support_oracle.py over few prompts; `make test-engine` runs them all over many.
"""

import random
from pathlib import Path

import pytest
import support_checkpoints as support
import support_oracle as oracle
import torch
import transformers
from support_checkpoints import MODEL, make_core, reference, request, run


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return oracle.World(tmp_path_factory.mktemp("oracle"), prompts=24, adapted=14)


@pytest.mark.parametrize(("case", "models"), oracle.runs(oracle.SMALL), ids=oracle.label)
def test_every_answer_is_that_of_transformers(world, case, models):
    assert oracle.check(world, case, models) == 0


def test_the_oracle_notices_a_wrong_token_a_wrong_end_and_a_wrong_logprob(world):
    model = "llama3@1"
    core = world.core([model])
    asked = [request(0, world.prompts[3], model=model, max_tokens=8, logprobs=2)]
    collected, answer = run(core, asked), world.answer(model, 3)
    assert oracle.agrees(collected, 0, answer, limit=8)
    right = list(collected.tokens[0])
    collected.tokens[0] = [*right[:4], right[4] + 1, *right[5:]]
    with pytest.raises(AssertionError, match="sequence 0 at 4"):
        oracle.agrees(collected, 0, answer, limit=8)
    collected.tokens[0] = right[:7]
    collected.logprobs[0].pop()
    with pytest.raises(AssertionError, match="sequence 0 at 7"):
        oracle.agrees(collected, 0, answer, limit=8)
    collected.tokens[0] = right[:6]
    collected.logprobs[0].pop()
    collected.logprobs[0][5].logprob += 2e-4
    with pytest.raises(AssertionError):
        oracle.agrees(collected, 0, answer, limit=6)


ROPE = {"rope_theta": 10000.0, "factor": 4.0}
VARIANTS = {
    "plain": ("llama", {}),
    "tied, biased, without groups": (
        "llama",
        {"tie_word_embeddings": True, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    ),
    "one key head, own head width": ("llama", {"num_key_value_heads": 1, "head_dim": 12}),
    "linear rope": ("llama", {"rope_parameters": ROPE | {"rope_type": "linear"}}),
    "llama 3 rope": (
        "llama",
        {
            "rope_parameters": ROPE
            | {
                "rope_type": "llama3",
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
}


def random_prompts(seed: int, count: int, longest: int = 40) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(3, support.VOCABULARY) for _ in range(source.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_batch_equals_transformers(variant, tmp_path):
    kind, changes = VARIANTS[variant]
    model = support.save_checkpoint(tmp_path, kind, **changes)
    prompts = random_prompts(1, 10)
    # 24 tokens a step cut most prompts into chunks that run beside decoding sequences.
    core = make_core({MODEL: tmp_path}, max_step_tokens=24)
    collected = run(core, [request(index, prompt) for index, prompt in enumerate(prompts)])
    assert [collected.tokens[index] for index in range(10)] == [reference(model, prompt) for prompt in prompts]
    assert core.capacity().free_blocks == 256


def test_logprobs_equal_transformers(tiny):
    folder, model = tiny
    prompts = random_prompts(5, 8)
    core = make_core({MODEL: folder}, max_step_tokens=24)
    requests = [
        request(index, prompt, logprobs=index % 4, repetition_penalty=1.3 if index % 2 else 1.0)
        for index, prompt in enumerate(prompts)
    ]
    collected = run(core, requests)
    for handle, prompt in enumerate(prompts):
        tokens = collected.tokens[handle]
        with torch.inference_mode():
            expected = torch.log_softmax(model(torch.tensor([prompt + tokens])).logits[0], dim=-1)[len(prompt) - 1 :]
        assert len(collected.logprobs[handle]) == len(tokens)
        for token, row, entry in zip(tokens, expected, collected.logprobs[handle], strict=False):
            assert entry.logprob == pytest.approx(row[token].item(), abs=1e-4)
            best = row.topk(handle % 4)
            assert [each for each, _ in entry.top] == best.indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_embeddings_are_the_normalised_mean_of_the_last_hidden_states(tiny):
    folder, model = tiny
    core = make_core({MODEL: folder})
    prompts = random_prompts(6, 4)
    for prompt in prompts:
        vector, _ = support.embed(core, prompt)
        with torch.inference_mode():
            hidden = model.model(torch.tensor([prompt])).last_hidden_state[0].mean(dim=0)
        expected = torch.nn.functional.normalize(hidden, dim=0)
        assert vector == pytest.approx(expected.tolist(), abs=1e-5)


DEMO = Path(__file__).parents[3] / "models" / "demo"


@pytest.mark.parametrize("name", ["fast", "quality"])
def test_demo_models_equal_transformers(name):
    folder = DEMO / name
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    questions = ["What is a weir?", "Tell me a short story about a river.", "Hello!", "What is 3 + 4?"]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in questions
    ]
    core = make_core({f"weir-{name}@1": folder}, block_size=16)
    requests = [request(i, each, model=f"weir-{name}@1", max_tokens=64) for i, each in enumerate(prompts)]
    collected = run(core, requests)
    ends = model.generation_config.eos_token_id
    for index, prompt in enumerate(prompts):
        with torch.inference_mode():
            ids = torch.tensor([prompt])
            output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False,
                                    temperature=None, top_p=None, pad_token_id=1)  # fmt: skip
        expected = [token for token in output[0, len(prompt) :].tolist() if token not in ends]
        assert collected.tokens[index] == expected
        assert tokenizer.decode(collected.tokens[index]).strip()
