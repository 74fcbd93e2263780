import pytest

from mlctl.bento import registered
from mlctl.bento.registered import PackedModel, runtime_hint
from mlctl.services.model.requirements import RuntimeFlavor


def test_runtime_hint__models_for_a_gpu_and_a_runtime_for_cpus__warns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = [
        PackedModel("a", "d", "models:/a/1", "bundle", "cpu"),
        PackedModel("b", "d", "models:/b/1", "bundle", "cuda"),
    ]
    monkeypatch.setattr(registered, "installed_version", lambda _: None)
    assert str(runtime_hint(models, None)).startswith("b: optimized for a GPU")
    assert runtime_hint(models, RuntimeFlavor.GPU) is runtime_hint(models[:1], None) is None
    monkeypatch.setattr(registered, "installed_version", lambda _: "1.31.1")
    assert runtime_hint(models, None) is None
