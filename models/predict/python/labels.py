"""Post-processing of `topics`: the likeliest topic by name. Runs in the predictor's sandbox."""

import numpy as np

TOPICS = (b"nature", b"smalltalk", b"stories", b"systems", b"water")


def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`scores`, float32 (rows, 5), to `topic`, BYTES (rows,)."""
    best = inputs["scores"].argmax(axis=1)
    return {"topic": np.array(TOPICS, dtype=object)[best]}
