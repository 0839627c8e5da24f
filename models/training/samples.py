"""Prints what the demo models answer: `python -m models.training.samples [NAME …]`. The model cards quote it.

The replies come from the project's own torch engine, in one batch per model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import jinja2
from tokenizers import Tokenizer

from libs.clock import SystemClock
from services.worker.engines.port import SamplingParams, SequenceRequest
from services.worker.engines.torch_engine import TorchCore, TorchSettings

QUESTIONS = (
    "What is a weir?",
    "Tell me a short story about a river.",
    "Why do queues need a limit?",
    "Explain backpressure to a child.",
    "What is the difference between a lake and a river?",
    "What is 3 + 4?",
    "Write a short poem about the rain.",
    "hello",
    "How do I bake bread?",
)


def answers(folder: Path, questions: tuple[str, ...], *, temperature: float, seed: int = 7) -> list[str]:
    """The model's reply to each question, asked alone."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    model = f"{manifest['name']}@{manifest['version']}"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = jinja2.Environment(autoescape=False).from_string(settings["chat_template"])  # prompts are no HTML
    core = TorchCore(TorchSettings(models={model: folder}), clock=SystemClock())
    core.load()
    requests = []
    for handle, question in enumerate(questions):
        prompt = template.render(
            messages=[{"role": "user", "content": question}],
            bos_token=settings["bos_token"],
            add_generation_prompt=True,
        )
        requests.append(
            SequenceRequest(
                handle=handle,
                model=model,
                prompt=tokenizer.encode(prompt, add_special_tokens=False).ids,
                params=SamplingParams(max_tokens=256, temperature=temperature, top_p=0.95, seed=seed),
            )
        )
    core.add(requests)
    tokens: list[list[int]] = [[] for _ in questions]
    while core.has_work():
        output = core.step()
        for handle, new in zip(output.handles, output.tokens, strict=True):
            tokens[handle] += new
    return [tokenizer.decode(each) for each in tokens]


def main() -> None:
    """Print question and answer for the named models, greedy and at temperature 0.7."""
    parser = argparse.ArgumentParser(prog="python -m models.training.samples", description=__doc__)
    parser.add_argument("names", nargs="*", default=["fast", "quality"])
    for name in parser.parse_args().names:
        folder = Path("models/demo") / name
        greedy = answers(folder, QUESTIONS, temperature=0.0)
        drawn = answers(folder, QUESTIONS, temperature=0.7)
        for question, first, second in zip(QUESTIONS, greedy, drawn, strict=True):
            print(f"{name} | {question}\n    0.0 | {first}\n    0.7 | {second}")  # noqa: T201


if __name__ == "__main__":
    main()
