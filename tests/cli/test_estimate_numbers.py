"""How `mlctl batch estimate` writes seconds and costs."""

import pytest

from mlctl.cli.commands.batch import three_digits


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1750.4, "1,750"),
        (944.3, "944"),
        (20.44, "20.4"),
        (0.566, "0.566"),
        (0.0000126, "0.0000126"),
        (0.0, "0"),
    ],
)
def test_three_digits__number_of_any_size__has_no_exponent(value: float, text: str) -> None:
    assert three_digits(value) == text
