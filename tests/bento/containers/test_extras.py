"""`--with`: the packages of mlctl's extras, in the versions that are installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from mlctl.bento.containers import extras
from mlctl.bento.containers.extras import EXTRAS, extra_requirements
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import IMAGE_VARIABLE, install_hint, installed_version

_PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_extras__each__has_the_packages_of_the_extra_in_pyproject() -> None:
    optional = tomllib.loads(_PYPROJECT.read_text())["project"]["optional-dependencies"]

    def packages(extra: str) -> set[tuple[str, frozenset[str]]]:
        found = set()
        for line in map(Requirement, optional[extra]):
            if line.name == "mlctl-serving":
                found |= set[tuple[str, frozenset[str]]]().union(*map(packages, line.extras))
            else:
                found.add((line.name, frozenset(line.extras)))
        return found

    for extra, lines in EXTRAS.items():
        ours = {(each.name, frozenset(each.extras)) for each in map(Requirement, lines)}
        assert ours == packages(extra), extra


def test_extra_requirements__several__are_pinned_once_and_sorted() -> None:
    found = extra_requirements(("batch", "stream", "kafka"), ["fsspec==2025.2", "numpy==2.0"])
    assert found == [
        f"confluent-kafka=={installed_version('confluent-kafka')}",
        f"flatbuffers=={installed_version('flatbuffers')}",
        f"pyarrow=={installed_version('pyarrow')}",
        f"redis[hiredis]=={installed_version('redis')}",
    ]


def test_extra_requirements__package_not_installed__is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "installed_version", lambda _name: None)
    with pytest.raises(MlctlError) as caught:
        extra_requirements(("gcs",), ())
    assert caught.value.code is ErrorCode.RUNTIME_MISSING
    assert "gcsfs" in caught.value.message
    assert "[gcs]" in str(caught.value.hint)


def test_install_hint__in_an_image__is_containerize(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IMAGE_VARIABLE, "digits:3f2a")
    assert install_hint("kafka").endswith("mlctl containerize digits:3f2a --with kafka")
