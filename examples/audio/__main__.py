"""Train a classifier of sounds in seconds and optimize it: `python -m mlctl.examples.audio`."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from torch import nn

from mlctl.examples.audio.transform.transform import BINS, FRAMES, LABELS, preprocess
from mlctl.examples.chain import example, fit_classifier, register_classifier

NAME = "audio"
TRANSFORM = Path(__file__).parent / "transform"
TRAINING_ROWS, EVALUATION_ROWS, EPOCHS = 300, 200, 8


def record(label: str, rng: np.random.Generator, rate: int = 16_000, channels: int = 1) -> bytes:
    """Return a tone of 0.8 to 1.2 s with noise, as a WAV file of 16 bits."""
    low, high = rng.uniform(300, 700), rng.uniform(1200, 2500)
    begin, end = {"rising": (low, high), "falling": (high, low), "steady": (low, low)}[label]
    samples = int(rng.uniform(0.8, 1.2) * rate)
    phase = 2 * np.pi * np.cumsum(np.linspace(begin, end, samples)) / rate
    sound = rng.uniform(0.2, 0.8) * np.sin(phase) + rng.normal(0, 0.05, samples)
    frames = np.repeat((np.clip(sound, -1, 1) * 32767).astype("<i2"), channels)
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(frames.tobytes())
    return content.getvalue()


def sounds(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return files as BYTES [rows], and class numbers [rows]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(LABELS), rows)
    files = np.empty(rows, object)
    files[:] = [record(LABELS[label], rng) for label in labels]
    return files, labels


def train(folder: Path) -> Path:
    """Train and register a version; write evaluation rows and a sound; return the rows' file."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv1d(BINS, 16, 5, stride=2), nn.ReLU(), nn.Conv1d(16, 16, 5, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * (((FRAMES - 3) // 2 - 3) // 2), len(LABELS))),
    )
    files, labels = sounds(TRAINING_ROWS, 1)
    inputs = preprocess({"sound": files})
    register_classifier(fit_classifier(net, inputs["spectrum"], labels, EPOCHS), NAME, inputs)
    files, labels = sounds(EVALUATION_ROWS, 2)
    path = folder / "evaluation.parquet"
    parquet.write_table(pa.table({"sound": pa.array(files.tolist()), "labels": labels}), path)
    (folder / "sound.wav").write_bytes(record("falling", np.random.default_rng(3), 44_100, 2))
    return path


main = example(
    NAME,
    train,
    f"mlctl build {NAME} && mlctl serve {NAME}",
    "curl -H 'content-type: audio/wav' --data-binary @{data}/sound.wav localhost:3000/predict",
    transform=TRANSFORM,
)

if __name__ == "__main__":
    main()
