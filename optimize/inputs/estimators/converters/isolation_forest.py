"""Convert IsolationForest to one tree ensemble.

skl2onnx's own converter makes an operator per tree and dozens of nodes around each: a forest of 100
trees took minutes to convert and to load.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlctl.optimize.inputs.estimators.converters.trees import below, missing_go_left

_LEAF = -1


def register_isolation_forest() -> None:
    """Replace skl2onnx's converter of IsolationForest in this process; idempotent."""
    from skl2onnx._supported_operators import update_registered_converter
    from sklearn.ensemble import IsolationForest

    update_registered_converter(
        IsolationForest,
        "SklearnIsolationForest",
        _infer_shape,
        _convert,
        overwrite=True,
        options={"score_samples": [False]},  # skl2onnx asks for this option of every one
    )


def _infer_shape(operator: Any) -> None:
    from skl2onnx.common.data_types import DoubleTensorType, Int64TensorType

    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].type = Int64TensorType([rows, 1])
    operator.outputs[1].type = DoubleTensorType([rows, 1])


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Emit score = -2 ** (-depths / limit) - offset, and the label -1 where it is negative.

    `depths` is the sum over all trees of the depth of a row's leaf, corrected for the training rows
    that share the leaf, as scikit-learn computes it; `limit` is its expected value.
    """
    from onnx import TensorProto
    from sklearn.ensemble._iforest import _average_path_length

    forest = operator.raw_operator

    def node(kind: str, *inputs: str, version: int = 13, **options: Any) -> str:
        name = str(scope.get_unique_variable_name(kind.lower()))
        container.add_node(kind, list(inputs), [name], op_version=version, **options)
        return name

    def constant(value: float, kind: int = TensorProto.DOUBLE) -> str:
        name = str(scope.get_unique_variable_name("constant"))
        container.add_initializer(name, kind, [1], [value])
        return name

    # Trees round their features to float32 as well.
    rows = node("Cast", operator.inputs[0].full_name, to=TensorProto.FLOAT)
    depths = node(
        "TreeEnsembleRegressor", rows, version=3, op_domain="ai.onnx.ml", **_ensemble(forest)
    )
    limit = len(forest.estimators_) * float(_average_path_length([forest._max_samples])[0])  # noqa: SLF001
    share = node("Mul", node("Cast", depths, to=TensorProto.DOUBLE), constant(-1 / limit))
    power = node("Pow", constant(2.0), share)
    score = node("Sub", node("Neg", power), constant(float(forest.offset_)))
    container.add_node("Identity", [score], [operator.outputs[1].full_name], op_version=13)
    outlier = node("Less", score, constant(0.0))
    integers = [constant(value, TensorProto.INT64) for value in (-1, 1)]
    container.add_node("Where", [outlier, *integers], [operator.outputs[0].full_name], op_version=9)


def _ensemble(forest: Any) -> dict[str, Any]:
    """Return the attributes of the ensemble; a leaf's weight is its depth."""
    found: dict[str, list[Any]] = {
        name: []
        for name in (
            *("nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_values"),
            *("nodes_modes", "nodes_truenodeids", "nodes_falsenodeids"),
            "nodes_missing_value_tracks_true",
            *("target_treeids", "target_nodeids", "target_ids", "target_weights"),
        )
    }
    trees = zip(
        forest.estimators_,
        forest.estimators_features_,
        forest._decision_path_lengths,  # noqa: SLF001 - nodes from the root to each node
        forest._average_path_length_per_tree,  # noqa: SLF001 - of a tree of the node's rows
        strict=True,
    )
    for number, (estimator, features, path_nodes, expected) in enumerate(trees):
        tree = estimator.tree_
        leaf = tree.children_left == _LEAF
        nodes = np.arange(tree.node_count)
        found["nodes_treeids"] += [number] * tree.node_count
        found["nodes_nodeids"] += nodes.tolist()
        found["nodes_featureids"] += np.where(leaf, 0, features[tree.feature]).tolist()
        found["nodes_values"] += np.where(leaf, 0, below(tree.threshold)).tolist()
        found["nodes_modes"] += np.where(leaf, "LEAF", "BRANCH_LEQ").tolist()
        found["nodes_truenodeids"] += np.where(leaf, 0, tree.children_left).tolist()
        found["nodes_falsenodeids"] += np.where(leaf, 0, tree.children_right).tolist()
        found["nodes_missing_value_tracks_true"] += missing_go_left(tree)
        found["target_treeids"] += [number] * int(leaf.sum())
        found["target_nodeids"] += nodes[leaf].tolist()
        found["target_ids"] += [0] * int(leaf.sum())
        depths = path_nodes - 1 + expected
        found["target_weights"] += depths[leaf].tolist()
    return {"n_targets": 1, **found}
