"""A new MLflow store is a copy of an empty one that is made once per run: a pytest plugin.

MLflow creates its tables by all of its migrations, which takes 1.5 s of CPU time for each store.
Processes that tests start still create their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlctl.core.files import exclusive
from mlctl.registry import tracking
from tests.support.shared import run_folder

_SQLITE = "sqlite:///"


@pytest.fixture(scope="session", autouse=True)
def _stores_are_copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    empty = run_folder(tmp_path_factory) / "empty-store.db"
    set_uri = tracking._set_uri

    def copy_then_set(uri: str) -> None:
        store = Path(uri.removeprefix(_SQLITE))
        if uri.startswith(_SQLITE) and not store.exists():
            with exclusive(empty.with_suffix(".lock")):
                if not empty.exists():
                    _create(empty)
            shutil.copyfile(empty, store)
        set_uri(uri)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "_set_uri", copy_then_set)
        yield


def _create(store: Path) -> None:
    import sqlalchemy
    from mlflow.store.db.utils import _initialize_tables

    part = store.with_suffix(".part")
    engine = sqlalchemy.create_engine(f"{_SQLITE}{part}")
    _initialize_tables(engine)  # type: ignore[no-untyped-call]
    engine.dispose()
    part.rename(store)
