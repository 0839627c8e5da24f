"""`wine-sklearn` (scikit-learn, saved by skops): which of three growers' wines is it?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import skops.io
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from models.predict.folder import Trained, data_sha256
from models.predict.scores import accuracy, resampled

MAX_ROWS = 256
_CARD = """
**Data.** "Wine" (Aeberhard, Forina 1992; in scikit-learn): chemical analyses of 178 wines of one Italian region, 13
measures each, from three cultivars. 70% trained it, chosen by cultivar with seed 16; the scores are of the other 30%,
which no choice was made by. `features` are the measures by the names of its columns, unscaled; `cultivar` is the
likeliest one, `probabilities` those of all three.
**Method.** scikit-learn: standardised measures, logistic regression with L2 (C = 1), no tuning; saved by skops. A
missing measure (NaN) is refused.
**Limits.** A demonstration: it must not be used to certify, to price or to judge wine. Three cultivars of one region
are all it knows: any other wine is called one of them all the same, and often surely so. With so few wines a score
near 1 says little of the next one: see its interval.
"""


def train(folder: Path) -> Trained:
    """A pipeline, and what its classes are called."""
    data = load_wine()
    names = np.array([str(each) for each in data.target_names])
    seen, unseen, labels, truth = train_test_split(
        data.data, data.target, test_size=0.3, stratify=data.target, random_state=16
    )
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=1000)).fit(seen, names[labels])
    skops.io.dump(model, folder / "model.skops")
    chances = model.predict_proba(unseen)
    said = np.array([each.encode() for each in model.predict(unseen)], object)
    columns = [{"name": str(name).replace("/", "_")} for name in data.feature_names]
    return Trained(
        name="wine-sklearn",
        title="whose grapes a wine is of",
        prediction={
            "steps": [
                {
                    "format": "sklearn",
                    "path": "model.skops",
                    "options": {"predict": "cultivar", "predict_proba": "probabilities"},
                }
            ],
            "inputs": [{"name": "features", "datatype": "FP64", "shape": ["-1", "13"], "columns": columns}],
            "outputs": [
                {"name": "cultivar", "datatype": "BYTES", "shape": ["-1"]},
                {
                    "name": "probabilities",
                    "datatype": "FP64",
                    "shape": ["-1", "3"],
                    "columns": [{"name": name} for name in names.tolist()],
                },
            ],
            "max_rows": MAX_ROWS,
            "profile": "classical",
        },
        files=["model.skops"],
        scores=[
            accuracy(model.predict(unseen) == names[truth]),
            resampled("log_loss", log_loss, truth, chances),
        ],
        card=_CARD,
        training_data_sha256=data_sha256(seen, labels),
        golden=({"features": unseen[:8]}, {"cultivar": said[:8], "probabilities": chances[:8]}),
    )
