"""`diabetes-lgbm` (LightGBM): how far will diabetes have progressed in a year?"""

from __future__ import annotations

from pathlib import Path

import lightgbm as lgb
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.metrics import mean_absolute_error, r2_score
from sklearn.model_selection import train_test_split

from models.predict.folder import Trained, data_sha256
from models.predict.scores import resampled

TREES, LEAVES = 80, 7
MAX_ROWS = 256
_SEX = 1
_COLUMNS = ("age", "sex", "bmi", "bp", "tc", "ldl", "hdl", "tch", "ltg", "glu")
"""Years; 1 or 2; kg/m²; mean arterial pressure in mmHg; six measures of blood serum."""
_CARD = """
**Data.** "Diabetes" (Efron, Hastie, Johnstone, Tibshirani 2004; in scikit-learn): 442 patients, ten measures each,
unscaled, and a measure of how far the disease had progressed a year later, 25 to 346. 70% trained it, chosen with
seed 16; the scores are of the other 30%, which no choice was made by. `features` are the measures by the names of its
columns, `sex` a category (1 or 2, as the study coded it); `progression` is in the study's unit.
**Method.** LightGBM, {trees} trees of {leaves} leaves, learning rate 0.05, 80% of the rows per tree, squared error; no
tuning. A measure that is missing is NaN. Always giving the mean of those it was trained with errs by {baseline:.1f}
on the same patients (`mean_absolute_error`).
**Limits.** A demonstration, no medical device: it must not be used to treat, to advise or to price anybody. So few
patients of one study: the intervals above are all that is known of it. It explains less than half of the variance, and
says nothing of causes.
"""


def train(folder: Path) -> Trained:
    """Boosted trees with a category."""
    seen, unseen, labels, truth = split()
    data = lgb.Dataset(seen, labels, feature_name=list(_COLUMNS), categorical_feature=[_SEX])
    settings = {
        "objective": "regression",
        "num_leaves": LEAVES,
        "learning_rate": 0.05,
        "min_data_in_leaf": 10,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "seed": 16,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbosity": -1,
    }
    model = lgb.train(settings, data, TREES)
    model.save_model(folder / "model.txt")
    # Of the file: its text has 17 digits, and it is what will be served.
    said = np.asarray(lgb.Booster(model_file=folder / "model.txt").predict(unseen, num_threads=1))
    columns = [{"name": name, **({"categorical": True} if name == "sex" else {})} for name in _COLUMNS]
    return Trained(
        name="diabetes-lgbm",
        title="progression of diabetes, boosted trees",
        prediction={
            "steps": [{"format": "lightgbm", "path": "model.txt"}],
            "inputs": [
                {"name": "features", "datatype": "FP64", "shape": ["-1", str(len(_COLUMNS))], "columns": columns}
            ],
            "outputs": [{"name": "progression", "datatype": "FP64", "shape": ["-1"]}],
            "max_rows": MAX_ROWS,
            "profile": "classical",
        },
        files=["model.txt"],
        scores=[
            resampled("r2", r2_score, truth, said, classes=False),
            resampled("mean_absolute_error", mean_absolute_error, truth, said, classes=False),
        ],
        card=_CARD.format(
            trees=TREES, leaves=LEAVES, baseline=mean_absolute_error(truth, np.full(len(truth), labels.mean()))
        ),
        training_data_sha256=data_sha256(seen, labels),
        golden=({"features": unseen[:8]}, {"progression": said[:8]}),
        prior={"progression": np.array([labels.mean()])},
    )


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Measures (n, 10) and progressions (n,), float64: seen and unseen patients, theirs likewise."""
    data = load_diabetes(scaled=False)
    return tuple(train_test_split(data.data, data.target, test_size=0.3, random_state=16))
