"""`topics` (Python, ONNX, Python): what is a text about? BYTES in, BYTES out."""

from __future__ import annotations

import re
import shutil
import zlib
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from models.predict.folder import Trained, data_sha256
from models.predict.python import features, labels
from models.predict.scores import accuracy, resampled
from models.training import grammar

READINGS = 6
"""Sentences that are drawn from one line of the texts."""
_HELD_OUT = 0.3
_OPSET, _IR = 17, 8
_WORDS = {"NAME": "Mira", "THING": "an old map", "ME": "Brook"}
_PLACES = re.compile(r"\b(NAME|THING|ME)\b")
_HERE = Path(__file__).parent / "python"


def train(folder: Path) -> Trained:
    """Logistic regression of hashed words, between two steps of Python."""
    seen, unseen = drawn()
    model = LogisticRegression(C=10.0, max_iter=2000).fit(_features(seen), [topic.decode() for _, topic in seen])
    (folder / "model.onnx").write_bytes(_graph(model).SerializeToString())
    for name in ("features.py", "labels.py"):
        shutil.copyfile(_HERE / name, folder / name)
    scores = model.predict_proba(_features(unseen))[:, _order(model)].astype(np.float32)
    said = np.array(labels.TOPICS, dtype=object)[scores.argmax(axis=1)]
    truth = np.array([topic for _, topic in unseen], dtype=object)
    some = [next(row for row, topic in enumerate(truth) if topic == each) for each in labels.TOPICS]
    card = f"""
**Data.** Sentences drawn from `models/training/texts`, which this project wrote: explanations of water, of nature
and of computer systems, stories, small talk; at most {READINGS} readings of each line. {1 - _HELD_OUT:.0%} of the
lines, chosen by a digest of their text, trained it; the scores are of sentences of the other lines, one of each, so
that none is another reading of a sentence it has seen.
**Method.** `features.py` counts words and pairs of words in {features.WIDTH} hashed places; logistic regression
(ONNX); `labels.py` names the likeliest topic. Both Python steps run in the predictor's sandbox.
**Limits.** It knows the vocabulary of those pages: a text about anything else becomes one of the five all the same,
and `scores` says how surely. English only.
"""
    return Trained(
        name="topics",
        title="what a sentence is about",
        prediction={
            "steps": [
                {
                    "format": "python",
                    "path": "features.py",
                    "options": {"outputs": f"features:FP32:-1x{features.WIDTH}"},
                },
                {"format": "onnx", "path": "model.onnx"},
                {"format": "python", "path": "labels.py", "options": {"inputs": "scores"}},
            ],
            "inputs": [{"name": "text", "datatype": "BYTES", "shape": ["-1"]}],
            "outputs": [
                {"name": "topic", "datatype": "BYTES", "shape": ["-1"]},
                {"name": "scores", "datatype": "FP32", "shape": ["-1", str(len(labels.TOPICS))]},
            ],
            "max_rows": 64,
            "lane": "process",
            "profile": "classical",
        },
        files=["features.py", "labels.py", "model.onnx"],
        scores=[accuracy(said == truth), resampled("macro_f1", _macro_f1, truth.astype(str), said.astype(str))],
        card=card,
        training_data_sha256=data_sha256(np.array(["\n".join(text for text, _ in seen)]).astype(np.bytes_)),
        golden=(
            {"text": np.array([unseen[row][0].encode() for row in some], dtype=object)},
            {"topic": said[some], "scores": scores[some]},
        ),
    )


def drawn() -> tuple[list[tuple[str, bytes]], list[tuple[str, bytes]]]:
    """Seen and unseen (sentence, topic)."""
    random = Random(16)
    seen: dict[str, bytes] = {}
    unseen: dict[str, bytes] = {}
    for line, topic in _lines():
        held_out = zlib.crc32(line.encode()) / 2**32 < _HELD_OUT
        for _ in range(1 if held_out else READINGS):
            sentence = grammar.capitalise(
                _PLACES.sub(lambda place: _WORDS[place.group()], grammar.expand(line, random))
            )
            (unseen if held_out else seen)[sentence] = topic
    return list(seen.items()), [each for each in unseen.items() if each[0] not in seen]


def _lines() -> list[tuple[str, bytes]]:
    found = []
    for topic in grammar.topics():
        said = [*(f"{topic.name} {each}." for each in topic.definitions), *topic.facts, *topic.reasons]
        found += [(line, topic.group.encode()) for line in said]
    for exchange in grammar.exchanges():
        found += [(line, b"smalltalk") for line in (*exchange.questions, *exchange.answers)]
    for story in grammar.stories().values():
        found += [(line, b"stories") for lines in story.values() for line in lines]
    return list(dict(found).items())


def _features(rows: list[tuple[str, bytes]]) -> np.ndarray:
    return features.run({"text": np.array([text.encode() for text, _ in rows], dtype=object)})["features"]


def _order(model: LogisticRegression) -> list[int]:
    return [list(model.classes_).index(topic.decode()) for topic in labels.TOPICS]


def _macro_f1(truth: np.ndarray, said: np.ndarray) -> float:
    return float(f1_score(truth, said, average="macro"))


def _graph(model: LogisticRegression) -> onnx.ModelProto:
    order = _order(model)
    constants = [
        numpy_helper.from_array(model.coef_[order].T.astype(np.float32), "weights"),
        numpy_helper.from_array(model.intercept_[order].astype(np.float32), "bias"),
    ]
    nodes = [
        helper.make_node("Gemm", ["features", "weights", "bias"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "topics",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", features.WIDTH])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", len(labels.TOPICS)])],
        constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    onnx.checker.check_model(made)
    return made
