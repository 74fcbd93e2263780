"""Load estimators from skops files, which hold data and the names of types, and no code.

skops creates only types that it is given as trusted. The list that MLflow stores beside a model
comes from the model's author, so it is ignored: `_TRUSTED` is our own. Trees are trusted after
their nodes were checked, because scikit-learn follows node numbers without bounds checks.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.text import printable
from mlctl.optimize.inputs.loading import loading

# In addition to the public estimators and functions that skops itself trusts.
_TRUSTED = frozenset(
    {
        "builtins.object",
        "collections.OrderedDict",
        "numpy.dtype",
        "numpy.number",
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.compose._column_transformer._RemainderColsList",
        "sklearn.compose._column_transformer.make_column_selector",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.feature_selection._mutual_info.mutual_info_classif",
        "sklearn.feature_selection._mutual_info.mutual_info_regression",
        "sklearn.feature_selection._univariate_selection.chi2",
        "sklearn.feature_selection._univariate_selection.f_classif",
        "sklearn.feature_selection._univariate_selection.f_regression",
        "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
        *(
            f"sklearn.gaussian_process.kernels.{name}"
            for name in ("ConstantKernel", "DotProduct", "ExpSineSquared", "Matern", "Product")
        ),
        *(
            f"sklearn.gaussian_process.kernels.{name}"
            for name in ("RBF", "RationalQuadratic", "Sum", "WhiteKernel")
        ),
        "sklearn.metrics._scorer._PassthroughScorer",
        "sklearn.model_selection._split.KFold",
        "sklearn.model_selection._split.StratifiedKFold",
        "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
        "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
        "sklearn.tree._tree.Tree",
        "sklearn.utils._bunch.Bunch",
    }
)
_LIGHTGBM = frozenset(
    {
        "lightgbm.basic.Booster",
        "lightgbm.compat._LGBMLabelEncoder",
        "lightgbm.sklearn.LGBMClassifier",
        "lightgbm.sklearn.LGBMRegressor",
    }
)
_LEAF = -1
_ENSEMBLES = tuple(
    f"sklearn.ensemble.{name}"
    for name in ("_bagging", "_forest", "_gb", "_hist_gradient_boosting", "_iforest", "_weight")
)


def load_skops(path: Path, label: str, *, lightgbm: bool = False) -> Any:
    """Return the estimator in the skops file; UNSUPPORTED_MODEL names the types it rejects."""
    import skops.io

    trusted = _TRUSTED | _LIGHTGBM if lightgbm else _TRUSTED
    with loading(label, "Log it with the versions of scikit-learn and skops that are here."):
        found = set(skops.io.get_untrusted_types(file=path))
        if not found - trusted:
            model = skops.io.load(path, trusted=sorted(found))
    if rejected := sorted(found - trusted):
        raise MlctlError(
            ErrorCode.UNSUPPORTED_MODEL,
            f"{label} contains types that are not loaded: {', '.join(map(printable, rejected))}"
            f"{_owners(path, rejected)}",
            "Use scikit-learn's own estimators and transformers; for neighbours, "
            'algorithm="brute". Own functions belong into a transform of mlctl.',
        )
    _check_trees(model, label)
    return model


def _owners(path: Path, rejected: Sequence[str]) -> str:
    """Return in words which public estimators hold the types of `rejected`, if any does."""
    found: dict[str, None] = {}
    with zipfile.ZipFile(path) as archive:
        parts: list[tuple[Any, tuple[str, ...]]] = [(json.loads(archive.read("schema.json")), ())]
    while parts:
        node, owners = parts.pop()
        if isinstance(node, dict):
            module, name = str(node.get("__module__")), str(node.get("__class__"))
            if f"{module}.{name}" in rejected:
                found |= {", ".join(owners): None} if owners else {}
            elif module.startswith("sklearn.") and name[:1].isupper():
                owners = (*owners, name)
            parts += [(part, owners) for part in reversed(node.values())]
        elif isinstance(node, list):
            parts += [(part, owners) for part in reversed(node)]
    return f" (in {'; '.join(map(printable, found))})" if found else ""


def _check_trees(model: Any, label: str) -> None:
    """Raise UNSUPPORTED_MODEL for a tree that scikit-learn would read outside of its memory."""
    from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
    from sklearn.tree._tree import Tree

    for item, features in objects(model):
        if isinstance(item, Tree):
            nodes = (item.children_left, item.children_right, item.feature)
            leaf = np.asarray(item.children_left) == _LEAF
            whole = bool((np.asarray(item.children_right)[leaf] == _LEAF).all())
        elif isinstance(item, TreePredictor):
            nodes = (item.nodes["left"], item.nodes["right"], item.nodes["feature_idx"])
            leaf = item.nodes["is_leaf"] != 0
            # Categorical splits index another table; the converter does not take them anyway.
            whole = not bool(item.nodes["is_categorical"].any())
        else:
            continue
        if not (whole and features is not None and _within(*nodes, leaf, features)):
            raise MlctlError(
                ErrorCode.UNSUPPORTED_MODEL,
                f"{label} contains a tree with categorical splits, or with nodes or features that "
                "do not exist",
                "Encode categories with OneHotEncoder or OrdinalEncoder, and train it again.",
            )


def _within(
    left: np.ndarray, right: np.ndarray, feature: np.ndarray, leaf: np.ndarray, features: int
) -> bool:
    """Return whether every inner node has a feature and two later nodes: no cycle, no end."""
    count = len(left)
    inner = ~np.asarray(leaf, bool)
    number = np.arange(count)[inner]
    split = np.asarray(feature, np.int64)[inner]
    ends = (np.asarray(side, np.int64)[inner] for side in (left, right))
    return (
        count > 0
        and bool(((split >= 0) & (split < features)).all())
        and all(bool(((end > number) & (end < count)).all()) for end in ends)
    )


def objects(model: Any) -> Iterator[tuple[Any, int | None]]:
    """Yield all objects that `model` holds, itself too, with the features that they may read."""
    return _objects(model, None, set())


def _objects(item: Any, features: int | None, done: set[int]) -> Iterator[tuple[Any, int | None]]:
    """Yield the objects that `item` holds, with the number of features that they may read."""
    if id(item) in done or isinstance(item, str | bytes | int | float | type(None)):
        return
    done.add(id(item))
    if isinstance(item, dict):
        parts = list(item.values())
    elif isinstance(item, list | tuple | set):
        parts = list(item)
    elif isinstance(item, np.ndarray):
        parts = list(item.flat) if item.dtype == object else []
    else:
        features = _features(item, features)
        parts = list(getattr(item, "__dict__", {}).values())
    yield item, features
    for part in parts:
        yield from _objects(part, features, done)


def _features(item: Any, outer: int | None) -> int | None:
    """Return how many features the trees in `item` may read; trees of an ensemble read its rows.

    None for other estimators: they may change the features before a tree reads them.
    """
    module = type(item).__module__
    own = getattr(item, "n_features_in_", None)
    if not isinstance(own, int | np.integer):
        return outer
    if module.startswith("sklearn.tree"):
        return int(own) if outer is None else min(int(own), outer)
    if not module.startswith(_ENSEMBLES):
        return None
    subsets = getattr(item, "estimators_features_", None)
    return min([int(own), *(len(subset) for subset in (() if subsets is None else subsets))])
