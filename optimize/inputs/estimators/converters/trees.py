"""Split as scikit-learn's trees do: they round features to float32, and learn where gaps go.

skl2onnx sends missing values to the right in every tree but those of histogram gradient boosting,
and does not end at a split at infinity, which sends only missing values to the right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_LEAF = -1


def register_trees() -> None:
    """Replace skl2onnx's functions of a tree's nodes in this process; idempotent."""
    from skl2onnx.common import tree_ensemble
    from skl2onnx.operator_converters import decision_tree, random_forest

    plain = tree_ensemble.add_tree_to_attribute_pairs
    modules: tuple[Any, ...] = (decision_tree, random_forest)
    for module in modules:
        module.add_tree_to_attribute_pairs = _with_missing(plain)
    tree_ensemble.sklearn_threshold = split_value


def _with_missing(plain: Any) -> Any:
    def add(
        found: dict[str, list[Any]], is_classifier: bool, tree: Any, *rest: Any, **options: Any
    ) -> None:
        plain(found, is_classifier, tree, *rest, **options)
        # The attribute has one number for each node of all trees so far.
        found["nodes_missing_value_tracks_true"][-tree.node_count :] = missing_go_left(tree)

    return add


def missing_go_left(tree: Any) -> list[int]:
    """Return for each node whether a row without the node's feature goes to the left child."""
    inner = tree.children_left != _LEAF
    found: list[int] = (inner & (tree.missing_go_to_left != 0)).astype(int).tolist()
    return found


def split_value(threshold: float, dtype: Any, mode: str) -> float:
    """Return the number to compare a feature of `dtype` with, as if it were rounded to float32."""
    assert mode == "BRANCH_LEQ", mode
    last = float(below(np.asarray(threshold, np.float64)))
    if dtype == np.float32 or not np.abs(last) < np.finfo(np.float32).max:
        return last
    # The middle of two neighbours is rounded to the even one.
    middle = (last + float(np.nextafter(np.float32(last), np.float32(np.inf)))) / 2
    return middle if np.float32(middle) == last else float(np.nextafter(middle, -np.inf))


def below(thresholds: np.ndarray) -> np.ndarray:
    """Return the largest float32 that is not above each threshold: no float32 lies between."""
    rounded = thresholds.astype(np.float32)
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)
