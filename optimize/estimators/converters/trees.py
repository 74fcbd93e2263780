"""Send missing values down the branches that scikit-learn's trees learnt for them.

skl2onnx sends them to the right in every tree but those of histogram gradient boosting.
"""

from __future__ import annotations

from typing import Any

_LEAF = -1


def register_trees() -> None:
    """Replace the function of skl2onnx that lists a tree's nodes in this process; idempotent."""
    from skl2onnx.common import tree_ensemble
    from skl2onnx.operator_converters import decision_tree, random_forest

    plain = tree_ensemble.add_tree_to_attribute_pairs
    modules: tuple[Any, ...] = (decision_tree, random_forest)
    for module in modules:
        module.add_tree_to_attribute_pairs = _with_missing(plain)


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
