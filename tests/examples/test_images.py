"""The images example: trained, optimized, and asked over HTTP with files."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from mlctl.bundle.verify import verify
from mlctl.core.home import HOME_VARIABLE, state_dir
from mlctl.examples.images.__main__ import draw, main
from mlctl.examples.images.transform.transform import LABELS
from mlctl.registry.tracking import TRACKING_VARIABLE
from tests.support.predict import post_all

pytestmark = pytest.mark.slow


def bomb(side: int) -> bytes:
    """Return a PNG of 100 bytes whose header declares `side` x `side` pixels."""
    file = io.BytesIO()
    Image.new("L", (1, 1)).save(file, "PNG")
    head = b"IHDR" + struct.pack(">II", side, side) + b"\x08\x00\x00\x00\x00"
    content = file.getvalue()
    return content[:12] + head + struct.pack(">I", zlib.crc32(head)) + content[33:]


def test_images__from_training_to_an_upload__labels_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    result = CliRunner().invoke(main, ["--data", str(tmp_path / "data")])
    assert result.exit_code == 0, result.output
    (manifest,) = state_dir("bundles").glob("*/manifest.json")
    rng = np.random.default_rng(9)
    jpeg, png = draw("circle", rng), draw("square", rng, "PNG")
    picture = (tmp_path / "data" / "picture.jpg").read_bytes()
    gif = io.BytesIO()
    Image.new("RGB", (8, 8)).save(gif, "GIF")
    found = post_all(
        verify(manifest.parent),
        [
            ("image/jpeg", picture),
            ("image/jpeg", jpeg),
            ("image/png", png),
            ("image/png", bomb(9_000)),
            ("image/png", bomb(100_000)),
            ("image/jpeg", jpeg[: len(jpeg) // 2]),
            ("image/jpeg", gif.getvalue()),
            ("image/jpeg", b""),
            ("image/gif", gif.getvalue()),
        ],
    )
    assert [each.status_code for each in found] == [200] * 3 + [400] * 5 + [415]
    labels = [each.json()["label"][0] for each in found[:3]]
    assert labels == ["triangle", "circle", "square"]
    assert found[0].headers["content-type"] == "application/json"
    assert len(found[0].json()["probabilities"][0]) == len(LABELS)
    assert found[3].json()["error"] == "the image has 81000000 pixels (limit 16000000)"
    assert found[4].json()["error"] == "the image has too many pixels (limit 16000000)"
    assert {each.json()["error"] for each in found[5:8]} == {
        "the body is not a readable JPEG or PNG image"
    }
