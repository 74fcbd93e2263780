"""Which values are probed, and what their failures exclude."""

from __future__ import annotations

import numpy as np
import pytest

from mlctl.bundle.tensors import DYNAMIC, Datatype, TensorSpec
from mlctl.optimize.proofs.probes import (
    FLOAT32_MAX,
    Exclusion,
    Probe,
    ProbeKind,
    category_probes,
    combine,
    make_probes,
    split_probes,
)

AGE = TensorSpec(name="age", dtype=Datatype.FP64, shape=(DYNAMIC,))
RATE = TensorSpec(name="rate", dtype=Datatype.FP32, shape=(DYNAMIC, 1))
CITY = TensorSpec(name="city", dtype=Datatype.BYTES, shape=(DYNAMIC,))
COUNT = TensorSpec(name="count", dtype=Datatype.INT64, shape=(DYNAMIC,))
FLAGS = TensorSpec(name="flags", dtype=Datatype.UINT8, shape=(DYNAMIC,))
MATRIX = TensorSpec(name="x", dtype=Datatype.FP32, shape=(DYNAMIC, 3))
IMAGE = TensorSpec(name="image", dtype=Datatype.FP32, shape=(DYNAMIC, 3, 8, 8))
IDS = TensorSpec(name="ids", dtype=Datatype.INT64, shape=(DYNAMIC, DYNAMIC))
BASE = {
    "age": np.array([30.0, 40.0, np.nan]),
    "rate": np.array([[1.0], [2.0], [3.0]], np.float32),
    "city": np.array([b"New York", b"Oslo", b""], object),
    "count": np.array([1, 5, 9]),
    "flags": np.array([0, 1, 1], np.uint8),
    "x": np.arange(9, dtype=np.float32).reshape(3, 3),
    "image": np.linspace(-1, 1, 576, dtype=np.float32).reshape(3, 3, 8, 8),
    "ids": np.array([[2, 3], [0, 1], [4, 4]]),
}


def values(spec: TensorSpec, *, table: bool = True) -> dict[ProbeKind, list[object]]:
    found: dict[ProbeKind, list[object]] = {}
    for probe in make_probes([spec], BASE, [BASE], table=table):
        found.setdefault(probe.kind, []).append(probe.value)
    return found


def test_make_probes__float_column__has_a_gap_zero_extremes_and_what_is_beyond_float32() -> None:
    found = values(AGE)
    assert repr(found.pop(ProbeKind.GAP)) == "[nan]"
    sizes = found.pop(ProbeKind.SIZE)
    assert found == {
        ProbeKind.ZERO: [0.0],
        ProbeKind.EXTREME: [30.0, 40.0],
        ProbeKind.LARGE: [np.inf, -np.inf, 1e300, -1e300, FLOAT32_MAX, -FLOAT32_MAX],
        ProbeKind.UNSEEN: [pytest.approx(33.819)],
    }
    assert {1e30, -1e30, 1e4, -1e4} <= set(sizes)
    assert values(RATE)[ProbeKind.LARGE] == [np.inf, -np.inf, FLOAT32_MAX, -FLOAT32_MAX]
    assert ProbeKind.UNSEEN not in values(AGE, table=False)


def test_make_probes__integer_column__has_negative_numbers_unless_given_or_unsigned() -> None:
    found = values(COUNT)
    assert {2**53 + 1, -(2**53 + 1), 10**4} <= set(found.pop(ProbeKind.SIZE))
    assert found == {
        ProbeKind.LARGE: [2**63 - 1, -(2**63)],
        ProbeKind.ZERO: [0],
        ProbeKind.EXTREME: [1, 9],
        ProbeKind.NEGATIVE: [-1],
        ProbeKind.UNSEEN: [10],
    }
    assert ProbeKind.NEGATIVE not in values(FLAGS)
    negative = {**BASE, "count": np.array([-3, 5, 9])}
    kinds = {probe.kind for probe in make_probes([COUNT], negative, [negative], table=False)}
    assert kinds == {ProbeKind.ZERO, ProbeKind.EXTREME}


def test_make_probes__text_column__has_empty_unseen_long_and_odd_texts() -> None:
    found = values(CITY)
    assert found[ProbeKind.GAP] == [b""]
    assert found[ProbeKind.UNSEEN] == [b"no category of this name"]
    (long,) = found[ProbeKind.LONG]
    assert isinstance(long, bytes)
    assert len(long) > 4000
    odd = found[ProbeKind.CHARACTER]
    assert ("New\u00a0York".encode(), "Oslo\u00a0".encode(), "\u00a0".encode()) in odd
    assert ("New Yor\u212a".encode(), b"Oslo", b"") in odd


def test_make_probes__sizes__leave_the_next_smaller_one_down_to_the_data() -> None:
    found = [
        (probe.value, probe.limits)
        for probe in make_probes([AGE], BASE, [BASE], table=True)
        if probe.kind in (ProbeKind.LARGE, ProbeKind.SIZE) and abs(probe.value) < 1e35
    ]
    assert found[0] == (1e30, (-FLOAT32_MAX, 1e24))
    assert (1e4, (-FLOAT32_MAX, 40.0)) in found
    assert found[-1] == (-1e4, (0.0, FLOAT32_MAX))


@pytest.mark.parametrize(
    ("dtype", "given", "sizes"),
    [
        (Datatype.INT8, [1, 5, 9], [(127, (-128, 9)), (-128, (0, 127))]),
        (Datatype.INT8, [-128, 0, 127], []),
        (Datatype.UINT8, [1, 5, 9], [(255, (0, 9))]),
        (
            Datatype.INT16,
            [-20000, 5, 9],
            [(32767, (-32768, 10**4)), (10**4, (-32768, 9)), (-32768, (-20000, 32767))],
        ),
    ],
)
def test_make_probes__sizes_of_whole_numbers__are_those_that_the_type_holds(
    dtype: Datatype, given: list[int], sizes: list[tuple[int, tuple[int, int]]]
) -> None:
    spec = TensorSpec(name="n", dtype=dtype, shape=(DYNAMIC,))
    base = {"n": np.array(given, dtype.numpy_name)}
    kinds = (ProbeKind.LARGE, ProbeKind.SIZE)
    probes = [each for each in make_probes([spec], base, [base], table=True) if each.kind in kinds]
    assert [(each.value, each.limits) for each in probes] == sizes
    assert all(each.rows(base)["n"][0] == each.value for each in probes)
    assert not {*kinds} & {each.kind for each in make_probes([spec], base, [base], table=False)}


def test_make_probes__matrix__has_each_feature_of_a_table() -> None:
    probes = make_probes([MATRIX], BASE, [BASE], table=True)
    assert {(probe.feature, probe.name) for probe in probes} == {
        (0, "x[0]"),
        (1, "x[1]"),
        (2, "x[2]"),
    }
    wide = make_probes([MATRIX], BASE, [BASE], table=True, max_features=2)
    assert {(probe.feature, probe.name) for probe in wide} == {(0, "x"), (2, "x")}
    gap = next(each for each in probes if each.kind is ProbeKind.GAP and each.feature == 1)
    assert np.argwhere(np.isnan(gap.rows(BASE)["x"])).tolist() == [[0, 1], [1, 1], [2, 1]]
    assert not np.isnan(BASE["x"]).any()


def test_make_probes__other_tensors__have_odd_values_in_the_first_and_last_place() -> None:
    probes = make_probes([IMAGE, IDS], BASE, [BASE], table=False)
    gap = next(each for each in probes if each.kind is ProbeKind.GAP and each.feature == -1)
    assert np.argwhere(np.isnan(gap.rows(BASE)["image"]))[0].tolist() == [0, 2, 7, 7]
    negative = [each for each in probes if each.kind is ProbeKind.NEGATIVE]
    assert [each.rows(BASE)["ids"][0].tolist() for each in negative] == [[-1, 3], [2, -1]]
    by_limit = {each.limits: each for each in probes if each.kind is not ProbeKind.GAP}
    for limit, size in ((1e24, 1e30), (1e30, FLOAT32_MAX)):
        found = by_limit[-limit, limit].rows(BASE)["image"]
        assert np.abs(found).max(axis=(1, 2, 3)) == pytest.approx([size] * 3)
    assert by_limit[-1e30, 1e30].kind is ProbeKind.LARGE
    assert make_probes([IDS], BASE, [{"ids": BASE["ids"] - 3}], table=False) == []


@pytest.mark.parametrize("size", [1e39, -1e39])
def test_make_probes__data_beyond_float32__has_no_larger_size(size: float) -> None:
    given = {"age": np.array([size, 0.0, 1.0])}
    found = make_probes([AGE], given, [given], table=True)
    sizes = {float(probe.value) for probe in found if probe.kind is ProbeKind.LARGE}
    beyond = float(-np.sign(size) * FLOAT32_MAX)
    assert sizes == {np.inf, -np.inf, 1e300, -1e300, beyond}


@pytest.mark.parametrize(
    ("dtype", "given", "sizes"),
    [
        (np.float32, [2.0, 0.0], [FLOAT32_MAX, 1e30]),
        (np.float64, [2.0, 0.0], [float(np.finfo(np.float64).max), FLOAT32_MAX]),
        (np.float32, [4e32, 0.0], [FLOAT32_MAX]),
        # Limits would exclude the infinity of the data: numbers whose sum is infinite stay.
        (np.float32, [2.0, -np.inf], [1e30, 1e24]),
    ],
)
def test_make_probes__other_tensors__infinity_stands_for_numbers_beyond_those_asked(
    dtype: type, given: list[float], sizes: list[float]
) -> None:
    spec = TensorSpec(
        name="x", dtype=Datatype.from_numpy_name(np.dtype(dtype).name), shape=(DYNAMIC, 2, 1)
    )
    base: dict[str, np.ndarray] = {"x": np.array([given] * 3, dtype).reshape(3, 2, 1)}
    probes = make_probes([spec], base, [base], table=False)
    infinite = [Exclusion(probe, "reason") for probe in probes if probe.value is np.inf]
    assert combine(infinite).limits == {"x": (-sizes[0], sizes[0])}
    asked = [each for each in probes if each.value is not np.inf and each.kind is not ProbeKind.GAP]
    found = [float(np.abs(each.rows(base)["x"]).max()) for each in asked]
    assert found[: len(sizes)] == pytest.approx(sizes)


@pytest.mark.parametrize("dtype", [Datatype.FP32, Datatype.FP64])
def test_split_probes__some_splits_of_float_columns__have_the_numbers_beside_them(
    dtype: Datatype,
) -> None:
    specs = [TensorSpec(name="x", dtype=dtype, shape=(DYNAMIC, 2)), COUNT]
    splits = {("x", 1): np.arange(1.0, 101.0), ("count", None): np.array([0.5])}
    probes = split_probes(specs, splits)
    assert {(each.column, each.feature, each.kind) for each in probes} == {
        ("x", 1, ProbeKind.SPLIT)
    }
    values = [float(each.value) for each in probes]
    assert len(values) == 12
    step = float(np.finfo(dtype.numpy_name).eps)
    assert values[:3] == [1 - step / 2, 1.0, 1 + step]
    assert values[-2] == 100.0


def test_category_probes__values_of_the_data_and_the_graph__are_each_asked_once() -> None:
    found = category_probes(CITY, [b"Rome", b"", b"Oslo"], [b"Oslo", b"Bern", 3])
    assert [probe.value for probe in found] == [b"Rome", b"Oslo", b"Bern"]
    found = category_probes(COUNT, [3, 4], [b"Oslo", 4, 7])
    assert [probe.value for probe in found] == [3, 4, 7]
    assert {type(probe.value) for probe in found} == {int}
    assert [repr(probe.value) for probe in category_probes(AGE, [3.0], [7])] == ["3.0", "7.0"]


def failed(kind: ProbeKind, column: str = "a", character: str = "") -> Exclusion:
    return Exclusion(Probe(column, kind, None, character=character), "reason")


def test_combine__each_kind__becomes_its_constraint() -> None:
    found = combine(
        [
            failed(ProbeKind.GAP),
            failed(ProbeKind.GAP),
            failed(ProbeKind.ZERO, "b"),
            failed(ProbeKind.LARGE),
            failed(ProbeKind.NEGATIVE, "c"),
            failed(ProbeKind.CHARACTER, "d", "_"),
            failed(ProbeKind.CHARACTER, "d", "_"),
            failed(ProbeKind.CHARACTER, "d", "\u00a0"),
        ]
    )
    assert (found.present, found.nonzero) == (("a",), ("b",))
    beyond = (-FLOAT32_MAX, FLOAT32_MAX)
    assert found.limits == {"a": beyond, "c": beyond}
    assert found.forbidden_characters == {"d": "_\u00a0"}
    assert (found.categorical, found.inexpressible) == ((), ())


def test_combine__unseen_values_differ__known_categories_cover_the_rest_but_gaps() -> None:
    kinds = (
        *(ProbeKind.UNSEEN, ProbeKind.ZERO, ProbeKind.NEGATIVE, ProbeKind.EXTREME, ProbeKind.LONG),
        *(ProbeKind.GAP, ProbeKind.LARGE),
    )
    found = combine([*(failed(kind) for kind in kinds), failed(ProbeKind.CHARACTER, "a", "_")])
    assert found.categorical == ("a",)
    assert (found.nonzero, found.limits, found.inexpressible) == ((), {}, ())
    assert found.forbidden_characters == {}
    assert found.present == ("a",)


@pytest.mark.parametrize("kind", [ProbeKind.EXTREME, ProbeKind.LONG, ProbeKind.SPLIT])
def test_combine__values_of_the_data_itself_differ__cannot_be_excluded(kind: ProbeKind) -> None:
    assert combine([failed(kind)]).inexpressible == (failed(kind),)


def test_combine__sizes_on_both_sides__leave_what_is_between() -> None:
    found = combine(
        [
            Exclusion(Probe("a", ProbeKind.LARGE, 1.0, limits=(-FLOAT32_MAX, 1e30)), "reason"),
            Exclusion(Probe("a", ProbeKind.SIZE, 1.0, limits=(-FLOAT32_MAX, 1e6)), "reason"),
            Exclusion(Probe("a", ProbeKind.SIZE, 1.0, limits=(0.0, FLOAT32_MAX)), "reason"),
        ]
    )
    assert found.limits == {"a": (0.0, 1e6)}
