from pathlib import Path
from typing import Any

import pytest

from mlctl.bento.clients.source import find_source
from mlctl.bento.packaging import BuiltBento
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.target import RemoteModel as Served
from tests.bento.clients.models import every_datatype
from tests.support.serving import Server


@pytest.mark.slow
def test_find_source__tag_folder_and_server__describe_the_same_model(
    server: Server,
    built: BuiltBento,
    shared_bundle: VerifiedBundle,
    store_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BENTOML_HOME", str(store_home))
    found = find_source(str(shared_bundle.root))
    assert (found.name, found.digest) == ("tiny", shared_bundle.digest)
    assert find_source(built.tag) == found
    assert find_source(str(built.path)) == found
    assert find_source(server.url) == found
    assert find_source(f"{server.url}/tiny") == found


@pytest.mark.slow
def test_find_source__server_without_the_model__is_an_error(server: Server) -> None:
    with pytest.raises(MlctlError, match="404"):
        find_source(f"{server.url}/other")


@pytest.mark.parametrize("name", ['x"\nimport os', "../x", "", "a b", "x" * 200])
def test_find_source__hostile_name_from_a_server__is_rejected(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: Any) -> Served:
        return Served(name, "1", every_datatype())

    monkeypatch.setattr("mlctl.bento.clients.source.describe_http", ask)
    with pytest.raises(MlctlError, match="unsafe in code") as caught:
        find_source("http://localhost:1")
    assert caught.value.code is ErrorCode.INVALID_INPUT
