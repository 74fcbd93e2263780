"""Decode a JPEG or PNG image, resize and normalize it; and name the class behind the model."""

import io
import warnings

import numpy as np
from PIL import Image, ImageOps

LABELS = ("circle", "square", "triangle")
INPUTS = {"image": ("BYTES", [-1])}
OUTPUTS = {"probabilities": ("FP32", [-1, len(LABELS)]), "label": ("BYTES", [-1])}

SIZE = 32
# A file of some kilobytes may declare billions of pixels; the header says how many before decoding.
MAX_PIXELS = 16_000_000
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)

_NAMES = np.array([label.encode() for label in LABELS], dtype=object)
warnings.simplefilter("ignore", Image.DecompressionBombWarning)


def preprocess(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the pixels [rows, 3, SIZE, SIZE] of the images."""
    pixels = np.stack([decode(content) for content in inputs["image"]])
    return {"pixels": ((pixels - MEAN) / DEVIATION).transpose(0, 3, 1, 2)}


def postprocess(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the probability of each class, and the label."""
    logits = outputs["logits"]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = shares / shares.sum(axis=1, keepdims=True)
    return {"probabilities": shares, "label": _NAMES[shares.argmax(axis=1)]}


def decode(content: bytes) -> np.ndarray:
    """Return an image as numbers from 0 to 1, [SIZE, SIZE, 3]; ValueError rejects the row."""
    try:
        # Only these two decoders: Pillow has dozens.
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise ValueError(f"the image has {width * height} pixels (limit {MAX_PIXELS})")
            image.draft("RGB", (SIZE, SIZE))  # a JPEG is decoded near the wanted size
            upright = ImageOps.exif_transpose(image).convert("RGB")
            small = upright.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    except Image.DecompressionBombError:
        raise ValueError(f"the image has too many pixels (limit {MAX_PIXELS})") from None
    except (OSError, SyntaxError):
        raise ValueError("the body is not a readable JPEG or PNG image") from None
    return np.asarray(small, np.float32) / 255
