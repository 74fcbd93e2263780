import pytest

from mlctl.bundle.manifest import Batching
from mlctl.services.model.tensorrt.profile import (
    Shapes,
    SizeRange,
    batch_range,
    make_profile,
    render_shapes,
)

TABLE = Batching(max_rows=32, buckets=(1, 8, 32), row_independent=True)


def test_make_profile__dynamic_batch__follows_the_buckets() -> None:
    profile = make_profile({"x": (-1, 3, 8)}, TABLE)
    assert profile == {"x": Shapes((1, 3, 8), (8, 3, 8), (32, 3, 8))}


def test_make_profile__other_dynamic_dimensions__have_the_lengths() -> None:
    profile = make_profile({"ids": (-1, -1), "mask": (-1, -1)}, TABLE, SizeRange(2, 64, 256))
    assert profile["ids"] == profile["mask"] == Shapes((1, 2), (8, 64), (32, 256))


def test_make_profile__fixed_inputs__is_empty() -> None:
    assert make_profile({"x": (1, 3), "scale": ()}, TABLE) == {}


def test_batch_range__no_batching__is_one_row() -> None:
    assert batch_range(None) == SizeRange(1, 1, 1)
    assert batch_range(Batching(max_rows=4, buckets=(4,), row_independent=False)) == SizeRange(
        1, 4, 4
    )


def test_render_shapes__profile__is_in_the_providers_format() -> None:
    profile = make_profile({"ids": (-1, -1), "x": (-1, 3)}, TABLE, SizeRange(1, 5, 9))
    assert render_shapes(profile) == {
        "min": "ids:1x1,x:1x3",
        "opt": "ids:8x5,x:8x3",
        "max": "ids:32x9,x:32x3",
    }
    assert render_shapes({}) == {}


@pytest.mark.parametrize("sizes", [(0, 1, 2), (3, 2, 4), (1, 5, 4)])
def test_size_range__does_not_ascend__is_rejected(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="minimum <= optimum <= maximum"):
        SizeRange(*sizes)
