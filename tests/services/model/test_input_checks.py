"""Values that a manifest's constraints exclude."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlctl.bundle.manifest import InputConstraints
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model.input_checks import ValueChecks

CITY = {"categories": {"x": ("Oslo", "Rome")}}


def text(*values: str) -> np.ndarray:
    return np.array([value.encode() for value in values], object)


@pytest.mark.parametrize(
    ("constraints", "array", "problem"),
    [
        ({"ranges": {"x": (0, 3)}}, np.array([0, 3]), None),
        ({"ranges": {"x": (0, 3)}}, np.array([1, -1]), "the value -1, expected 0 to 3"),
        ({"ranges": {"x": (0, 3)}}, np.array([], np.int64), None),
        ({"present": ("x",)}, np.array([1.0, 2.0]), None),
        ({"present": ("x",)}, np.array([[1.0, np.nan]]), "a missing value"),
        ({"present": ("x",)}, text("a", ""), "a missing value"),
        ({"nonzero": ("x",)}, np.array([1.0, np.nan]), None),
        ({"nonzero": ("x",)}, np.array([1.0, 0.0]), "the value 0, for which"),
        ({"limits": {"x": (-5.0, 5.0)}}, np.array([-5.0, np.nan, 5.0]), None),
        ({"limits": {"x": (-5.0, 5.0)}}, np.array([np.nan, np.nan]), None),
        ({"limits": {"x": (-5.0, 5.0)}}, np.array([5.1, np.nan]), "the value 5.1, expected -5 to"),
        ({"limits": {"x": (-5.0, 5.0)}}, np.array([-np.inf]), "the value -inf, expected"),
        (CITY, text("Rome", "", "Oslo"), None),
        (CITY, text("Rome", "Lima"), "the value 'Lima', which is none of the categories"),
        ({"categories": {"x": (1, 2)}}, np.array([2, 1]), None),
        ({"categories": {"x": (1, 2)}}, np.array([2, 3]), "the value 3, which is none"),
        ({"categories": {"x": (0.5,)}}, np.array([0.5, np.nan]), None),
        ({"categories": {"x": (0.5,)}}, np.array([0.25]), "the value 0.25, which is none"),
        ({"forbidden_characters": {"x": "]^-\u0130"}}, text("abc"), None),
        ({"forbidden_characters": {"x": "]^-\u0130"}}, text("a", "\u0130a"), "U\\+0130"),
        ({"forbidden_characters": {"x": "]^-\u0130"}}, text("a-b"), "U\\+002D"),
    ],
)
def test_value_checks__values__are_rejected_with_tensor_and_value(
    constraints: dict[str, Any], array: np.ndarray, problem: str | None
) -> None:
    checks = ValueChecks(InputConstraints(**constraints))
    assert checks
    if problem is None:
        checks.check({"x": array})
        return
    with pytest.raises(MlctlError, match=f"tensor 'x' has .*{problem}") as caught:
        checks.check({"x": array})
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_value_checks__no_constraint__has_nothing_to_do() -> None:
    assert not ValueChecks(InputConstraints(nullable=("x",)))
