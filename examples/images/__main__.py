"""Train a classifier of images in seconds and optimize it: `python -m mlctl.examples.images`."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import Image, ImageDraw
from pyarrow import parquet
from torch import nn

from mlctl.examples.chain import example, fit_classifier, register_classifier
from mlctl.examples.images.transform.transform import LABELS, SIZE, preprocess

NAME = "images"
TRANSFORM = Path(__file__).parent / "transform"
TRAINING_ROWS, EVALUATION_ROWS, EPOCHS = 600, 300, 10


def draw(label: str, rng: np.random.Generator, form: str = "JPEG") -> bytes:
    """Return a picture of a shape in random colours, as a file of 48 to 96 pixels."""
    side = int(rng.integers(48, 97))
    back, front = (tuple(map(int, rng.integers(*limits, 3))) for limits in ((0, 90), (150, 256)))
    image = Image.new("RGB", (side, side), back)
    left, top = rng.integers(4, side // 3, 2)
    right = int(left + rng.integers(side // 3, side // 2))
    box = (int(left), int(top), right, int(top) + right - int(left))
    pen = ImageDraw.Draw(image)
    if label == "circle":
        pen.ellipse(box, front)
    elif label == "square":
        pen.rectangle(box, front)
    else:
        pen.polygon([(box[0], box[3]), (box[2], box[3]), ((box[0] + box[2]) // 2, box[1])], front)
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def pictures(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return files as BYTES [rows], and class numbers [rows]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(LABELS), rows)
    files = np.empty(rows, object)
    files[:] = [draw(LABELS[label], rng) for label in labels]
    return files, labels


def train(folder: Path) -> Path:
    """Train and register a version; write evaluation rows and a picture; return the rows' file."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 5, stride=2, padding=2), nn.ReLU()),
        *(nn.Conv2d(8, 16, 5, stride=2, padding=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * (SIZE // 4) ** 2, len(LABELS))),
    )
    files, labels = pictures(TRAINING_ROWS, 1)
    inputs = preprocess({"image": files})
    register_classifier(fit_classifier(net, inputs["pixels"], labels, EPOCHS), NAME, inputs)
    files, labels = pictures(EVALUATION_ROWS, 2)
    path = folder / "evaluation.parquet"
    parquet.write_table(pa.table({"image": pa.array(files.tolist()), "labels": labels}), path)
    (folder / "picture.jpg").write_bytes(draw("triangle", np.random.default_rng(3)))
    return path


main = example(
    NAME,
    train,
    f"mlctl build {NAME} && mlctl serve {NAME}",
    "curl -H 'content-type: image/jpeg' --data-binary @{data}/picture.jpg localhost:3000/predict",
    transform=TRANSFORM,
)

if __name__ == "__main__":
    main()
