"""Fixtures of one real Bento that is built and served once per session; a pytest plugin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlctl.bento.packaging import BuiltBento, build_bento
from mlctl.bundle.verify import VerifiedBundle
from tests.support.bundles import make_bundle
from tests.support.serving import Server, launch, running
from tests.support.tiny_llm import make_tiny_llm_bundle

LABELS = {
    "mlctl.model": "tiny-optimized",
    "mlctl.version": "1",
    "mlctl.source": "models:/tiny/1",
}


@pytest.fixture
def bundle(tmp_path: Path) -> VerifiedBundle:
    return make_bundle(tmp_path / "bundle")


@pytest.fixture(scope="session")
def store_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BENTOML_HOME that all tests which build share."""
    return tmp_path_factory.mktemp("bentoml")


@pytest.fixture(scope="session")
def shared_bundle(tmp_path_factory: pytest.TempPathFactory) -> VerifiedBundle:
    return make_bundle(tmp_path_factory.mktemp("shared") / "bundle")


@pytest.fixture(scope="session")
def tiny_llm_bundle(tmp_path_factory: pytest.TempPathFactory) -> VerifiedBundle:
    """A language model; a test that uses it is slow, because the first one trains it."""
    return make_tiny_llm_bundle(tmp_path_factory.mktemp("tiny-llm") / "bundle")


@pytest.fixture(scope="session")
def built(store_home: Path, shared_bundle: VerifiedBundle) -> BuiltBento:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENTOML_HOME", str(store_home))
        return build_bento(shared_bundle, LABELS)


@pytest.fixture(scope="session")
def server(
    built: BuiltBento, store_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    limits = {"MLCTL_MAX_BODY_BYTES": "100000"}
    launched = launch(
        built.tag, folder / "log", cwd=folder, bento_home=store_home, environment=limits
    )
    with running(launched) as ready:
        yield ready
