import gc

import pytest

from mlctl.core.garbage import rare_collection


def test_rare_collection__block_ends__what_lives_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    before, frozen = gc.get_threshold(), list[int]()
    # Frozen for the rest of this process, other tests' garbage would not be found.
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    with rare_collection():
        assert gc.get_threshold()[0] >= 50_000
        assert not frozen
    assert (frozen, gc.get_threshold()) == ([1], before)
