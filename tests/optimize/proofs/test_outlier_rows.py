"""Outlier rows for text and for rows with missing numbers."""

import numpy as np

from mlctl.optimize.data import Rows
from mlctl.optimize.proofs.outlier_rows import distinct, outlier_batches


def test_outliers__of_text__keep_room_for_longer_texts() -> None:
    texts = np.array([b"b", b"a longer text", b"c"], dtype=object)
    for batch in outlier_batches({"text": texts}, {"text": texts}):
        assert batch["text"].dtype == object


def test_outliers__beside_missing_numbers__are_numbers() -> None:
    values = np.array([1.0, np.nan, 3.0])
    batches = [batch["x"] for batch in outlier_batches({"x": values}, {"x": values})]
    assert all(np.isfinite(batch).all() for batch in batches)
    assert {float(batch[0]) for batch in batches} >= {0.0, 1.0, 3.0}


def test_distinct__rows_of_text__differ_by_their_content() -> None:
    texts = np.array([b"a", b"a", b"b"], dtype=object)
    assert {*distinct(Rows({"text": texts}, None)).tolist()} == {0, 2}
