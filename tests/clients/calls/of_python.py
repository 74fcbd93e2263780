"""BentoML's clients and MLflow's scoring client."""

from __future__ import annotations

import json

import bentoml
import numpy as np
import pandas as pd
from mlflow.pyfunc.scoring_server.client import ScoringServerClient

from tests.clients.report import Calls, Servers

X = np.arange(8, dtype=np.float32).reshape(2, 4)
Y = X * 2 + X.sum(axis=1, keepdims=True)
bento = Calls("BentoML")
mlflow = Calls("MLflow")


@bento("`SyncHTTPClient`")
def _(servers: Servers) -> None:
    with bentoml.SyncHTTPClient(f"http://{servers.tiny}") as client:
        assert client.is_ready()
        np.testing.assert_allclose(client.predict(x=X), Y, rtol=1e-5)
        np.testing.assert_allclose(client.predict(x=X.tolist()), Y, rtol=1e-5)


@bento("`AsyncHTTPClient`")
async def _(servers: Servers) -> None:
    async with bentoml.AsyncHTTPClient(f"http://{servers.tiny}") as client:
        np.testing.assert_allclose(await client.predict(x=X), Y, rtol=1e-5)


def scoring(address: str) -> ScoringServerClient:
    host, _, port = address.partition(":")
    return ScoringServerClient(host, int(port))


@mlflow("`ScoringServerClient` with a data frame")
def _(servers: Servers) -> None:
    client = scoring(servers.table)
    client.wait_server_ready()
    frame = pd.DataFrame({"income": [10.0, 20.0], "age": [1.0, 2.0]})
    found = client.invoke(frame).get_predictions()
    assert found.iloc[:, 0].tolist() == [1010.0, 2020.0], found


@mlflow("`ScoringServerClient` with arrays and JSON")
def _(servers: Servers) -> None:
    found = scoring(servers.tiny).invoke(X).get_predictions()
    np.testing.assert_allclose(found.to_numpy(), Y, rtol=1e-5)
    named = {"inputs": {"age": [1.0], "income": [10.0]}}
    assert scoring(servers.table).invoke(json.dumps(named)).get_predictions().iloc[0, 0] == 1010.0


@mlflow("`params`", works=False)
def _(servers: Servers) -> None:
    try:
        scoring(servers.tiny).invoke(X, params={"top_k": 3})
    except Exception as error:  # noqa: BLE001 - it raises no other class
        assert "takes no parameters" in str(error), error
    else:
        raise AssertionError("it was accepted")


if __name__ == "__main__":
    bento.run()
    mlflow.run()
