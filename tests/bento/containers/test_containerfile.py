"""The Containerfile's text: no value from outside can become an instruction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlctl.bento.containers.containerfile import Image, containerfile
from mlctl.core.errors import MlctlError

TAG = "digits:3f2a"
BASE = "docker.io/library/python:3.11-slim-bookworm"
PLAIN = containerfile(Image(TAG, BASE, {"mlctl.source": "models:/digits/3"}))


@given(st.text())
def test_containerfile__any_text_in_a_label__stays_on_its_line(text: str) -> None:
    lines = containerfile(Image(TAG, BASE, {"mlctl.source": text})).splitlines()
    assert len(lines) == len(PLAIN.splitlines())
    changed = [line for line, plain in zip(lines, PLAIN.splitlines(), strict=True) if line != plain]
    assert all(line.startswith('LABEL "mlctl.source"="') for line in changed)


@given(st.text(min_size=1))
def test_containerfile__any_name_of_a_label__stays_on_its_line(name: str) -> None:
    lines = containerfile(Image(TAG, BASE, {name: "x"})).splitlines()
    assert len(lines) == len(PLAIN.splitlines())
    assert len([line for line in lines if line.startswith("LABEL ")]) == 2


def test_containerfile__quotes_and_variables_in_a_label__are_text() -> None:
    text = containerfile(Image(TAG, BASE, {"mlctl.source": 'a"b\\c$HOME\nRUN x'}))
    assert 'LABEL "mlctl.source"="a\\"b\\\\c\\$HOME\N{REPLACEMENT CHARACTER}RUN x"\n' in text


@pytest.mark.parametrize("base", ["", "a b", "a\nRUN x", "-x", "${X}", "a@sha256:12"])
def test_containerfile__base_that_is_no_image__is_rejected(base: str) -> None:
    with pytest.raises(MlctlError):
        containerfile(Image(TAG, base, {}))


def test_containerfile__last_stage__runs_as_a_number_without_build_tools() -> None:
    last = PLAIN.split("FROM ")[-1]
    assert "USER 65532:65532" in last
    assert "apt-get" not in PLAIN
    assert "uninstall --yes --quiet --root-user-action ignore pip" in last
    assert "--require-hashes" in PLAIN
    assert "-m compileall -q --invalidation-mode unchecked-hash" in last
    assert "NVIDIA" not in PLAIN
    assert "NVIDIA_VISIBLE_DEVICES" in containerfile(Image(TAG, BASE, {}, gpu=True))
