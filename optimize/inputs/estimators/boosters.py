"""LightGBM's Booster behind scikit-learn's interface; what converters leave out of graphs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin


class BoosterClassifier(ClassifierMixin, BaseEstimator):
    """A Booster with a binary or multiclass objective; its classes are numbers from 0."""

    def __init__(self, booster: Any) -> None:
        self.booster = booster
        self.classes_ = np.arange(max(2, booster.num_model_per_iteration()))

    def predict_proba(self, rows: Any) -> np.ndarray:
        """Return the probabilities [rows, classes]."""
        found = np.asarray(self.booster.predict(np.asarray(rows, np.float64), num_threads=1))
        return np.stack([1.0 - found, found], axis=1) if found.ndim == 1 else found

    def predict(self, rows: Any) -> np.ndarray:
        """Return the most probable class [rows]."""
        found: np.ndarray = self.classes_[self.predict_proba(rows).argmax(axis=1)]
        return found


class BoosterRegressor(RegressorMixin, BaseEstimator):
    """A Booster with any other objective."""

    def __init__(self, booster: Any) -> None:
        self.booster = booster

    def predict(self, rows: Any) -> np.ndarray:
        """Return the predictions [rows]."""
        return np.asarray(self.booster.predict(np.asarray(rows, np.float64), num_threads=1))


def finish_xgboost(model: Any, booster: Any) -> None:
    """Give the trees of a regressor their targets, and a logistic one its link function."""
    from onnx import helper

    learner = json.loads(booster.save_raw("json"))["learner"]
    targets = int(learner["learner_model_param"]["num_target"])
    logistic = learner["objective"]["name"] in ("binary:logistic", "reg:logistic")
    node = next(node for node in model.graph.node if node.op_type == "TreeEnsembleRegressor")
    if targets > 1:
        tree_targets = learner["gradient_booster"]["model"]["tree_info"]
        trees = _attribute(node, "target_treeids")
        _replace(node, target_ids=[tree_targets[tree] for tree in trees], n_targets=targets)
    if logistic:
        base = np.array(_numbers(learner["learner_model_param"]["base_score"]))
        _replace(node, base_values=np.log(base / (1 - base)).tolist())
        answer, node.output[0] = node.output[0], "margin"
        model.graph.node.append(helper.make_node("Sigmoid", ["margin"], [answer]))


def plain_xgboost(booster: Any) -> Any:
    """Return an XGBoost Booster whose trees are only added up: those of DART have weights."""
    import xgboost

    document = json.loads(booster.save_raw("json"))
    learner = document["learner"]
    trees = learner["gradient_booster"]
    sizes = [
        int(tree["tree_param"]["size_leaf_vector"])
        for tree in trees.get("model", trees.get("gbtree", {}).get("model"))["trees"]
    ]
    if max(sizes, default=0) > 1:
        raise NotImplementedError(
            "of trees with several targets there is no ONNX form; train with "
            'multi_strategy="one_output_per_tree"'
        )
    if trees["name"] != "dart":
        return booster
    for tree, weight in zip(trees["gbtree"]["model"]["trees"], trees["weight_drop"], strict=True):
        values = tree["split_conditions"]
        leaves = [at for at, child in enumerate(tree["left_children"]) if child == _LEAF]
        for leaf in leaves:
            values[leaf] *= weight
    learner["gradient_booster"] = {**trees["gbtree"], "name": "gbtree"}
    return xgboost.Booster(model_file=bytearray(json.dumps(document).encode()))


def plain_lightgbm(booster: Any) -> Any:
    """Return a LightGBM Booster whose trees are only added up, before the usual logistic function.

    Those of a random forest are averaged, and a classifier may scale their sum. The objectives mape
    and fair differ from others in training only. Of an objective's names (ova, ...) the converter
    knows the one that is written, which a Booster as it was trained may not have.
    """
    import lightgbm

    lines = booster.model_to_string().splitlines()
    if "is_linear=1" in lines:
        raise NotImplementedError("linear_tree has no ONNX form; train with linear_tree=False")
    factor = 1.0
    if "average_output" in lines:
        factor /= booster.num_trees() // booster.num_model_per_iteration()
    changed = []
    for line in lines:
        if match := _SIGMOID.match(line):
            factor *= float(match[2])
            line = f"{match[1]}1"  # noqa: PLW2901
        elif line.startswith("threshold="):
            line = line.replace(_BELOW_ZERO, _NEXT_BELOW)  # noqa: PLW2901
        changed.append(_AS_REGRESSION.get(line, line))
    changed = [_scaled(line, factor) for line in changed if line != "average_output"]
    # The lengths of the trees' texts in the header are no longer right, and need not be there.
    return lightgbm.Booster(
        model_str="\n".join(line for line in changed if not line.startswith("tree_sizes="))
    )


def finish_catboost(model: Any, loss: str) -> None:
    """Add the function that CatBoost's export leaves out between the sum of trees and the answer.

    Losses of counts predict a logarithm; of classes one against the rest each has its own share.
    """
    from onnx import helper

    for node in list(model.graph.node):
        if node.op_type == "TreeEnsembleRegressor" and loss.startswith(("Poisson", "Tweedie")):
            answer, node.output[0] = node.output[0], "logarithm"
            model.graph.node.append(helper.make_node("Exp", ["logarithm"], [answer]))
        if node.op_type == "TreeEnsembleClassifier" and loss.startswith("MultiClassOneVsAll"):
            _replace(node, post_transform="LOGISTIC")


def finish_lightgbm(model: Any, booster: Any, rows: str) -> None:
    """Treat missing values of the input `rows` as each feature's splits do; see `_missing_types`.

    Classes that LightGBM trains one against the rest get their own share each, not softmax's.
    """
    from onnx import helper, numpy_helper

    graph, types = model.graph, dict(_missing_types(booster))
    made: list[Any] = []

    def constant(name: str, values: Any) -> str:
        graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(kind: str, *inputs: str) -> str:
        made.append(helper.make_node(kind, list(inputs), [f"{kind}_{len(made)}"]))
        return str(made[-1].output[0])

    def replaced(kind: str, value: str, found: str, new: float) -> str:
        """Return `value` with `new` where `found`, in the features of that kind."""
        features = [types.get(at) == kind for at in range(booster.num_feature())]
        here = node("And", found, constant(f"{kind}_features", [features]))
        return node("Where", here, constant(f"{kind}_new", np.array([new])), value)

    value = rows
    if "None" in types.values():
        value = replaced("None", value, node("IsNaN", value), 0.0)
    if "Zero" in types.values():
        zero = constant("zero", np.array([_ZERO]))
        value = replaced("Zero", value, node("LessOrEqual", node("Abs", value), zero), np.nan)
    for each in graph.node:
        each.input[:] = [value if name == rows else name for name in each.input]
        is_classifier = each.op_type == "TreeEnsembleClassifier"
        if is_classifier and "objective=multiclassova" in booster.model_to_string():
            _replace(each, post_transform="LOGISTIC")
    nodes = [*made, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


_LEAF = -1
# The objectives with a factor before the logistic function.
_SIGMOID = re.compile(r"(objective=(?:binary|multiclassova) .*\bsigmoid:)(.+)$")

# Two places name the objective.
_AS_REGRESSION = {
    "objective=mape": "objective=regression",
    "[objective: mape]": "[objective: regression]",
    "objective=fair": "objective=regression",
    "[objective: fair]": "[objective: regression]",
}

# LightGBM takes numbers up to this size, which it writes as a float32, for zero.
_ZERO = float(np.float32(1e-35))
# So a split below zero never has the number at its threshold on its lower side.
_BELOW_ZERO, _NEXT_BELOW = repr(-_ZERO), repr(float(np.nextafter(-_ZERO, -1)))


def _missing_types(booster: Any) -> Iterator[tuple[int, str]]:
    """Yield the features of all splits, each with what LightGBM does there.

    None: NaN counts as zero; Zero: zero counts as NaN; NaN: neither.
    """
    parts = [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]
    while parts:
        node = parts.pop()
        if "split_feature" in node:
            yield node["split_feature"], node["missing_type"]
            parts += [node["left_child"], node["right_child"]]


def _scaled(line: str, factor: float) -> str:
    """Scale the leaves of a line of LightGBM's text; other lines stay as they are."""
    name, _, values = line.partition("=")
    if name != "leaf_value":
        return line
    return f"{name}={' '.join(repr(float(value) * factor) for value in values.split())}"


def _numbers(text: str) -> list[float]:
    return [float(each) for each in text.strip("[]").split(",")]


def _attribute(node: Any, name: str) -> Any:
    from onnx import helper

    return next(helper.get_attribute_value(each) for each in node.attribute if each.name == name)


def _replace(node: Any, **values: Any) -> None:
    from onnx import helper

    kept = [each for each in node.attribute if each.name not in values]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in values.items())
