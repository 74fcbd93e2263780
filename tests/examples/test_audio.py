"""The audio example: trained, optimized, and asked over HTTP with files."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mlctl.bundle.verify import verify
from mlctl.core.home import HOME_VARIABLE, state_dir
from mlctl.examples.audio.__main__ import main, record
from mlctl.examples.audio.transform.transform import MAX_SECONDS, RATE, decode
from mlctl.registry.tracking import TRACKING_VARIABLE
from tests.support.predict import post_all


def wav(samples: np.ndarray, rate: int = RATE, width: int = 2) -> bytes:
    """Return a WAV file of `samples` [samples, channels], bytes as they are stored."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return content.getvalue()


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_decode__samples_of_each_width__are_between_minus_1_and_1(width: int) -> None:
    exact = np.array([0, 1 << 30, -(1 << 30), -(1 << 31)])
    stored = exact >> 32 - 8 * width
    if width == 1:
        stored = stored + 128
    packed = b"".join(
        int(value).to_bytes(width, "little", signed=width > 1) for value in stored.tolist()
    )
    samples = np.frombuffer(packed, np.uint8).reshape(-1, width)
    content = wav(samples.reshape(-1, 1), width=width)
    found = decode(content)
    np.testing.assert_array_equal(found, [0.0, 0.5, -0.5, -1.0])


@pytest.mark.parametrize("rate", [4_000, 8_000, 11_025, 44_100, 48_000])
def test_decode__another_rate__keeps_the_tone_and_the_length(rate: int) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
    both = np.repeat((tone * 32767).astype("<i2")[:, None], 2, axis=1)
    found = decode(wav(both, rate))
    assert len(found) == RATE
    assert np.abs(np.fft.rfft(found)).argmax() == 440
    assert np.abs(found).max() == pytest.approx(0.5, abs=0.02)


def test_decode__a_tone_above_the_new_rate__is_damped() -> None:
    tone = np.sin(2 * np.pi * 15_000 * np.arange(48_000) / 48_000)
    found = decode(wav((tone * 32767).astype("<i2")[:, None], 48_000))
    assert np.abs(found).max() < 0.25


def test_decode__samples_of_64_bits__are_an_error_with_the_limit() -> None:
    content = bytearray(wav(np.zeros((8, 1), "<i4"), width=4))
    content[34:36] = (64).to_bytes(2, "little")
    with pytest.raises(ValueError, match="64 bits; at most 32"):
        decode(bytes(content))


@pytest.mark.slow
def test_audio__from_training_to_an_upload__labels_the_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)
    result = CliRunner().invoke(main, ["--data", str(tmp_path / "data")])
    assert result.exit_code == 0, result.output
    (manifest,) = state_dir("bundles").glob("*/manifest.json")
    rng = np.random.default_rng(9)
    rising, steady = record("rising", rng, 22_050), record("steady", rng)
    long = wav(np.zeros((MAX_SECONDS + 1, 1), "<i2"), 1)
    # The header declares more sound than the body has.
    cut = rising[: len(rising) // 2]
    floats = steady.replace(b"fmt \x10\0\0\0\x01", b"fmt \x10\0\0\0\x03")
    bodies = [(tmp_path / "data" / "sound.wav").read_bytes(), rising, steady]
    bodies += [long, cut, wav(np.zeros((0, 1), "<i2")), floats, b"no sound", b""]
    found = post_all(verify(manifest.parent), [("audio/wav", body) for body in bodies])
    assert [each.status_code for each in found] == [200] * 3 + [400] * 6
    assert [each.json()["label"][0] for each in found[:3]] == ["falling", "rising", "steady"]
    assert found[3].json()["error"] == f"the sound is longer than {MAX_SECONDS} s"
    assert {each.json()["error"] for each in found[4:6]} == {
        "the WAV file has no sound, or is cut off"
    }
    assert {each.json()["error"] for each in found[6:]} == {
        "the body is not a readable WAV file of PCM"
    }
