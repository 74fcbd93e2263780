"""The digits: 8x8 grey scans of handwriting, split by a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SEED = 7
MAX_GREY = 16.0


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """`images` float32 [n, 1, 8, 8] in [0, 1]; `labels` int64 [n]."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def load_split() -> tuple[LabelledImages, LabelledImages]:
    """Return the training rows (two thirds) and the held-out rows, stratified by digit."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images / MAX_GREY).astype(np.float32)[:, None]
    parts = train_test_split(
        images,
        digits.target.astype(np.int64),
        test_size=1 / 3,
        random_state=SEED,
        stratify=digits.target,
    )
    train_images, test_images, train_labels, test_labels = parts
    return LabelledImages(train_images, train_labels), LabelledImages(test_images, test_labels)


def save_rows(path: Path, split: LabelledImages) -> None:
    """Write `split` as the `--data` file of `mlctl optimize`."""
    np.savez(path, image=split.images, labels=split.labels)
