"""Decode a WAV file, resample it, and make a spectrogram; name the class behind the model."""

import io
import wave

import numpy as np

LABELS = ("rising", "falling", "steady")
INPUTS = {"sound": ("BYTES", [-1])}
OUTPUTS = {"probabilities": ("FP32", [-1, len(LABELS)]), "label": ("BYTES", [-1])}

RATE = 8000  # samples per second that the model takes
SAMPLES = RATE  # the first second; shorter sounds end in silence
MAX_SECONDS = 60
FRAME, HOP = 256, 128
BINS = FRAME // 2 + 1
FRAMES = (SAMPLES - FRAME) // HOP + 1

_WINDOW = np.hanning(FRAME)
_NAMES = np.array([label.encode() for label in LABELS], dtype=object)


def preprocess(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the spectrograms [rows, BINS, FRAMES] of the sounds."""
    return {"spectrum": np.stack([spectrum(decode(content)) for content in inputs["sound"]])}


def postprocess(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the probability of each class, and the label."""
    logits = outputs["logits"]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = shares / shares.sum(axis=1, keepdims=True)
    return {"probabilities": shares, "label": _NAMES[shares.argmax(axis=1)]}


def decode(content: bytes) -> np.ndarray:
    """Return a WAV file of PCM as mono at RATE, from -1 to 1; ValueError rejects the row."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            rate, frames, channels = file.getframerate(), file.getnframes(), file.getnchannels()
            # The header says how long the sound is before it is decoded.
            if frames > MAX_SECONDS * rate:
                raise ValueError(f"the sound is longer than {MAX_SECONDS} s")
            width, data = file.getsampwidth(), file.readframes(frames)
            if width > 4:
                raise ValueError(f"a sample has {8 * width} bits; at most 32 can be read")
    except (wave.Error, EOFError):
        raise ValueError("the body is not a readable WAV file of PCM") from None
    if len(data) < max(frames, 1) * channels * width:
        raise ValueError("the WAV file has no sound, or is cut off")
    return resample(_numbers(data, width).reshape(-1, channels).mean(axis=1), rate)


def _numbers(data: bytes, width: int) -> np.ndarray:
    """Return the samples of `width` bytes, from -1 to 1."""
    if width == 1:  # the only width without a sign
        return (np.frombuffer(data, np.uint8) - 128.0) / 128
    # Shifted to the upper bytes of 32 bits, so that the sign is right.
    padded = np.zeros((len(data) // width, 4), np.uint8)
    padded[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return padded.view("<i4")[:, 0] / 2.0**31


def resample(sound: np.ndarray, rate: int) -> np.ndarray:
    """Return `sound` at RATE: each new sample is the mean of those it replaces, against aliases."""
    step = rate / RATE
    width = max(step, 1.0)
    total = np.concatenate([[0.0], np.cumsum(sound)])
    starts, at = np.arange(int(len(sound) / step)) * step, np.arange(len(total))
    means: np.ndarray = np.interp(starts + width, at, total) - np.interp(starts, at, total)
    return means / width


def spectrum(sound: np.ndarray) -> np.ndarray:
    """Return the logarithms of the magnitudes of the first SAMPLES, [BINS, FRAMES]."""
    clip = np.zeros(SAMPLES)
    clip[: len(sound)] = sound[:SAMPLES]
    frames = np.lib.stride_tricks.sliding_window_view(clip, FRAME)[::HOP]
    return np.log1p(np.abs(np.fft.rfft(frames * _WINDOW))).T.astype(np.float32)
