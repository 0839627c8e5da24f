"""The demo models as they lie in the repository: digests, size, template, and that replies read as language."""

import hashlib
import json
from pathlib import Path

import pytest
import transformers

from models.training import samples, tokenizer
from models.training.__main__ import CORPUS_SEED, DOCUMENTS
from models.training.corpus import Corpus, Dialogue, sha256

DEMO = Path(__file__).parents[3] / "models" / "demo"
FOLDERS = [DEMO / "fast", DEMO / "quality"]


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_manifest_is_what_the_files_are(folder):
    content = manifest(folder)
    assert (content["name"], content["version"]) == (f"weir-{folder.name}", "1")
    assert {each["path"] for each in content["files"]} == {file.name for file in folder.iterdir()} - {"manifest.json"}
    for each in content["files"]:
        found = (folder / each["path"]).read_bytes()
        assert (len(found), hashlib.sha256(found).hexdigest()) == (each["bytes"], each["sha256"])
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    assert template == tokenizer.CHAT_TEMPLATE
    assert content["chat_template_sha256"] == hashlib.sha256(template.encode()).hexdigest()


def test_the_models_were_trained_on_the_corpus_that_the_code_draws():
    digest = sha256(list(Corpus(CORPUS_SEED).draw(DOCUMENTS)))
    assert [manifest(folder)["training_data_sha256"] for folder in FOLDERS] == [digest, digest]


def test_both_together_are_small():
    assert sum(file.stat().st_size for file in DEMO.rglob("*")) <= 12_000_000


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_template_renders_what_the_model_was_trained_on(folder):
    turns = [("system", "Be brief."), ("user", "Hi <b>"), ("assistant", "Hello!"), ("user", "Ünï 7\n?")]
    messages = [{"role": role, "content": text} for role, text in turns]
    rendering = transformers.AutoTokenizer.from_pretrained(folder)
    text = rendering.apply_chat_template(messages, tokenize=False)
    assert text + tokenizer.EOS == tokenizer.render(Dialogue(turns))
    ids = rendering.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids[0] == manifest(folder)["bos_token_id"]
    assert rendering.decode(ids) == text + "<|assistant|>"


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_replies_are_on_the_topic_and_end(folder, temperature):
    expected = {
        "What is a weir?": "weir is a",
        "Tell me a short story about a river.": "river",
        "Explain rain.": "Rain is water",
        "tell me about queues": "queue is a line",
        "hello": "!",
        "Who are you?": "Brook",
    }
    replies = samples.answers(folder, tuple(expected), temperature=temperature)
    for (question, words), reply in zip(expected.items(), replies, strict=True):
        assert words in reply, (question, reply)
        # 256 tokens are more than any answer of the corpus: a longer reply did not end by itself.
        assert 10 < len(reply) < 900
        assert reply[-1] in '.!?"'
