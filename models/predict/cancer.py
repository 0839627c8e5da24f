"""`cancer-gbdt` (XGBoost) and its smaller tier `cancer-linear` (ONNX): is a breast tumour malignant?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import xgboost
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from models.predict.folder import Trained, data_sha256
from models.predict.scores import Score, accuracy, resampled

TREES = 100
FEATURES = 30
MAX_ROWS = 256
_OPSET, _IR = 17, 8
_DATA = """
**Data.** "Breast Cancer Wisconsin (Diagnostic)" (Wolberg, Street, Mangasarian 1995; in scikit-learn): 569 tumours
with 30 measures of their cells' nuclei, 212 of them malignant. 70% trained it, chosen by class with seed 16; the
scores are of the other 30%, which no choice was made by. `features` are the 30 measures in scikit-learn's order,
unscaled; `probability` is that of a malignant tumour, 0 to 1.
"""
_LIMITS = """
**Limits.** A demonstration, no medical device. So few tumours, from one clinic, thirty years ago: the intervals
above are all that is known of it, and they hold for patients like those.
"""

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def split() -> Split:
    """Rows (n, 30) float32 and labels (1: malignant): seen and unseen rows, seen and unseen labels."""
    data = load_breast_cancer()
    rows, labels = data.data.astype(np.float32), (1 - data.target).astype(np.int64)
    return tuple(train_test_split(rows, labels, test_size=0.3, stratify=labels, random_state=16))


def spec(format_: str, path: str) -> dict[str, Any]:
    """What both take and give."""
    return {
        "steps": [{"format": format_, "path": path}],
        "inputs": [{"name": "features", "datatype": "FP32", "shape": ["-1", str(FEATURES)]}],
        "outputs": [{"name": "probability", "datatype": "FP32", "shape": ["-1"]}],
        "max_rows": MAX_ROWS,
        "profile": "classical",
    }


def train_gbdt(folder: Path) -> Trained:
    """Boosted trees; missing measures (NaN) go the way that training found best."""
    seen, unseen, labels, truth = split()
    matrix = xgboost.DMatrix(seen, labels)
    settings = {"objective": "binary:logistic", "max_depth": 3, "eta": 0.1, "subsample": 0.8, "seed": 16, "nthread": 1}
    model = xgboost.train(settings, matrix, num_boost_round=TREES)
    model.save_model(folder / "model.ubj")
    said = model.inplace_predict(unseen)
    card = f"""{_DATA}
**Method.** XGBoost, {TREES} trees of depth 3, learning rate 0.1, 80% of the rows per tree; no tuning. A measure
that is missing is NaN. Where it cannot be computed `cancer-linear` answers, and at last the share of malignant
tumours among the rows it was trained with.
{_LIMITS}"""
    return Trained(
        name="cancer-gbdt",
        title="malignant tumours, boosted trees",
        prediction={**spec("xgboost", "model.ubj"), "smaller": ["cancer-linear@1"]},
        files=["model.ubj"],
        scores=_scores(truth, said),
        card=card,
        training_data_sha256=data_sha256(seen, labels),
        golden=({"features": unseen[:8]}, {"probability": said[:8]}),
        prior={"probability": np.array([labels.mean()], np.float32)},
    )


def train_linear(folder: Path) -> Trained:
    """Logistic regression; the scaling of the measures is folded into its weights."""
    seen, unseen, labels, truth = split()
    scaler = StandardScaler().fit(seen)
    model = LogisticRegression(C=1.0, max_iter=1000).fit(scaler.transform(seen), labels)
    weights = model.coef_[0] / scaler.scale_
    bias = model.intercept_[0] - float(weights @ scaler.mean_)
    (folder / "model.onnx").write_bytes(_graph(weights, bias).SerializeToString())
    said = (1 / (1 + np.exp(-(unseen.astype(np.float64) @ weights + bias)))).astype(np.float32)
    card = f"""{_DATA}
**Method.** Logistic regression of standardised measures, L2 with C = 1; as ONNX, a product and a sigmoid. The
smaller tier of `cancer-gbdt`: the same inputs and outputs. A missing measure (NaN) makes its answer NaN.
{_LIMITS}"""
    return Trained(
        name="cancer-linear",
        title="malignant tumours, logistic regression",
        prediction=spec("onnx", "model.onnx"),
        files=["model.onnx"],
        scores=_scores(truth, said),
        card=card,
        training_data_sha256=data_sha256(seen, labels),
        golden=({"features": unseen[:8]}, {"probability": said[:8]}),
        # In float32 terms of up to 40 cancel to differences near 1.
        absolute=1e-4,
        relative=1e-3,
    )


def _graph(weights: np.ndarray, bias: float) -> onnx.ModelProto:
    constants = [
        numpy_helper.from_array(weights.astype(np.float32).reshape(-1, 1), "weights"),
        numpy_helper.from_array(np.array([bias], np.float32), "bias"),
        numpy_helper.from_array(np.array([-1], np.int64), "flat"),
    ]
    nodes = [
        helper.make_node("Gemm", ["features", "weights", "bias"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["column"]),
        helper.make_node("Reshape", ["column", "flat"], ["probability"]),
    ]
    graph = helper.make_graph(
        nodes,
        "cancer-linear",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", FEATURES])],
        [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["rows"])],
        constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    onnx.checker.check_model(made)
    return made


def _scores(truth: np.ndarray, said: np.ndarray) -> list[Score]:
    return [
        accuracy((said > 0.5) == truth),
        resampled("roc_auc", roc_auc_score, truth, said),
        resampled("log_loss", log_loss, truth, said.astype(np.float64)),
    ]
