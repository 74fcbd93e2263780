"""What only a machine with an NVIDIA GPU can prove; `pytest -m gpu` runs it."""

from pathlib import Path

import numpy as np
import pytest

from mlctl.bundle.manifest import MODEL_NAME, Batching
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.home import HOME_VARIABLE
from mlctl.services.model.session import Session, open_session
from mlctl.services.model.tensorrt.machine import find_gpu, provider_problem
from tests.support.bundles import expected

pytestmark = pytest.mark.gpu

TABLE = Batching(max_rows=32, buckets=(1, 8, 32), row_independent=True)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; the test fails at once where there is no GPU."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    find_gpu()
    return tmp_path / "home"


def answers(session: Session, rows: int) -> None:
    x = np.random.default_rng(rows).random((rows, 4), dtype=np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], expected(x), rtol=1e-5, atol=1e-5)


def engines(home: Path) -> dict[Path, int]:
    found = (home / "cache" / "tensorrt" / "engines").rglob("*")
    return {path: path.stat().st_mtime_ns for path in found if path.is_file()}


def test_cuda__real_gpu__answers_like_the_model(bundle: VerifiedBundle) -> None:
    session = open_session(bundle.path(MODEL_NAME), "cuda")
    assert session.provider == "cuda"
    answers(session, 3)


def test_tensorrt__real_gpu__answers_at_each_bucket_and_reuses_its_engine(
    bundle: VerifiedBundle, home: Path
) -> None:
    if problem := provider_problem():
        pytest.skip(problem)
    model = bundle.path(MODEL_NAME)
    session = open_session(model, "tensorrt", batching=TABLE)
    assert session.provider == "tensorrt"
    for rows in (*TABLE.buckets, 5):
        answers(session, rows)
    before = engines(home)
    assert any(path.suffix == ".engine" for path in before)
    answers(open_session(model, "tensorrt", batching=TABLE), 8)
    assert engines(home) == before
