"""Which batch sizes run on a GPU, with the CPU in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.layout.scorable import open_scorer
from mlctl.services.model import scorer
from mlctl.services.model.padding import RowPaddedSession
from mlctl.services.model.scorer import Scorer
from mlctl.services.model.session import Session, open_session
from mlctl.services.online.settings import ServerSettings


@pytest.fixture
def bundle(shared_bundle: VerifiedBundle) -> VerifiedBundle:
    return shared_bundle


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the provider, sessions are opened on the CPU."""
    monkeypatch.setattr(scorer, "open_session", lambda path, *_, **__: open_session(path))


@pytest.mark.usefixtures("on_the_cpu")
def test_scorer__on_cuda__pads_to_the_sizes_of_the_bundle(bundle: VerifiedBundle) -> None:
    opened = Scorer.open(bundle, ServerSettings(provider="cuda"))
    assert isinstance(opened._session, RowPaddedSession)


@pytest.mark.usefixtures("on_the_cpu")
def test_batch_job__on_cuda__pads_nothing(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_PROVIDER", "cuda")
    assert not isinstance(open_scorer(bundle)._session, RowPaddedSession)


@pytest.mark.parametrize(("provider", "rows"), [("tensorrt", 32), ("cpu", 64)])
def test_batch_job__on_tensorrt__takes_no_more_rows_than_the_engine_was_built_for(
    bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch, provider: str, rows: int
) -> None:
    def open_here(model: Path, *_: object, **__: object) -> Session:
        session = open_session(model)
        session.provider = provider
        return session

    monkeypatch.setattr(scorer, "open_session", open_here)
    monkeypatch.setenv("MLCTL_PROVIDER", provider)
    assert open_scorer(bundle, 64).max_rows == rows
    assert (open_scorer(bundle).max_rows > 32) is (provider == "cpu")
