"""No value can break out of its place in a manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import example, given
from hypothesis import strategies as st

from mlctl.bento.manifests.plan import Scaling
from mlctl.bento.manifests.targets import KServeMode, ManifestTarget, TargetOptions
from mlctl.bento.manifests.yaml_values import yaml_value
from tests.bento.manifests.example_plans import FULL, documents

# Words with a meaning in YAML or Jinja2, and lines that would open another document.
WORDS = (
    "yes", "No", "null", "~", "1e3", "0x1f", "1_000", "12:30:45", "2026-11-22", "- a", "a: b",
    "a #b", "{{ x }}", "{% raw %}", "*a", "&a", "!!str", "|", ">", '"', "'", "\\", "---", "=", "<<",
    "a\nb: c", "a\n---\nkind: Secret", "\u0085", "\u2028", "\ufeff", "\x00",
)  # fmt: skip
# Every character that UTF-8 can encode, too.
TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8")),
    st.sampled_from(WORDS),
)


@given(TEXTS)
def test_yaml_value__any_text__is_read_back_on_one_line(text: str) -> None:
    written = yaml_value(text)
    assert len(written.splitlines()) == 1
    assert yaml.safe_load(f"a: {written}\nb: [{written}, 1]\n{written}: 2") == {
        "a": text, "b": [text, 1], text: 2,
    }  # fmt: skip


@pytest.mark.parametrize(("value", "written"), [(3, "3"), (True, "true"), ("a-b/c.d", "a-b/c.d")])
def test_yaml_value__plain_value__has_no_quotes(value: object, written: str) -> None:
    assert yaml_value(value) == written


def test_yaml_value__another_type__is_an_error() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        yaml_value(None)


@pytest.mark.slow
@given(TEXTS)
@example("://")
def test_manifests__hostile_values__stay_values(text: str) -> None:
    # It becomes a key, and YAML allows a key 1024 characters, escapes included.
    service = f"service{text[:63]}"
    hostile = replace(
        FULL,
        model=replace(FULL.model, tag=f"shop:{text}", service=service),
        resources=replace(FULL.resources, reason=text),
        scaling=Scaling(0, 8, text, f"http://{text}"),
        settings={"MLCTL_A": text},
    )
    # An address among the settings opens the way out, whatever else it says.
    setting = "x://x" if "://" in text else "x"
    plain = replace(hostile, resources=FULL.resources, settings={"MLCTL_A": setting})
    plain = replace(plain, model=replace(FULL.model, service=service))
    plain = replace(plain, scaling=Scaling(0, 8, "x", "http://x"))
    for target in ManifestTarget:
        options = TargetOptions(KServeMode.KNATIVE, instance_type="cpu.2")
        found, expected = (documents(each, target, options) for each in (hostile, plain))
        assert list(_shape(found)) == list(_shape(expected))
        dollars = text.replace("$", "$$") if target is ManifestTarget.COMPOSE else text
        assert dollars in list(_values(found))


def _shape(value: Any) -> Iterator[object]:
    """Yield the keys and the types of a document, in order."""
    yield type(value)
    for key in value if isinstance(value, dict) else ():
        yield key
        yield from _shape(value[key])
    for each in value if isinstance(value, list) else ():
        yield from _shape(each)


def _values(value: Any) -> Iterator[object]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _values(each)
    else:
        yield value
