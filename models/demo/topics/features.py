"""Pre-processing of `topics`: texts to counts of words and pairs of words, hashed. Runs in the predictor's sandbox."""

import itertools
import re
import zlib

import numpy as np

WIDTH = 2048
_WORDS = re.compile(r"[a-z']+|[?]")


def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`text`, BYTES (rows,), UTF-8 (what is none becomes U+FFFD), to `features`, float32 (rows, WIDTH) of length 1."""
    features = np.zeros((len(inputs["text"]), WIDTH), np.float32)
    for row, text in zip(features, inputs["text"], strict=True):
        words = _WORDS.findall(text.decode("utf-8", "replace").lower())
        for word in words + [" ".join(pair) for pair in itertools.pairwise(words)]:
            row[zlib.crc32(word.encode()) % WIDTH] += 1
        row /= max(float(np.linalg.norm(row)), 1e-12)
    return {"features": features}
