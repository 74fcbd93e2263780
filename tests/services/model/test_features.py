"""Features that a transform looks up: their stores, and the answers online, in batch and stream."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from prometheus_client import CollectorRegistry

from mlctl.bundle.tensors import Datatype, Signature, TensorSpec
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.loadtest.parity.batch_path import BatchPath
from mlctl.loadtest.parity.stream_path import StreamPath
from mlctl.optimize.inputs.transforms.transform import read_transform
from mlctl.services.model.features import FeatureLookup, FeatureTable, open_store
from mlctl.services.model.scorer import Scorer
from mlctl.services.model.settings import RuntimeSettings
from mlctl.services.model.transform import Transform, TransformError, load_module
from mlctl.services.model.warmup import check_golden
from mlctl.services.online.http.inference import timing
from mlctl.services.online.models.served_model import ServedModel
from mlctl.services.online.settings import load_settings
from tests.services.precomputed.servers import redis_server
from tests.support.transforms import make_text_bundle, token_signature

CODE = """
import numpy as np

INPUTS = {"user": ("BYTES", [-1])}
FEATURES = {
    "table": "users",
    "key": "user",
    "values": {"age": ("INT64", 30), "weight": ("FP32", 0.5), "plan": ("BYTES", "free")},
}


def preprocess(inputs):
    ids = np.zeros((len(inputs["user"]), 6), np.int64)
    ids[:, 0] = inputs["age"]
    ids[:, 1] = inputs["weight"] * 2
    ids[:, 2] = inputs["plan"] == b"paid"
    return {"ids": ids, "mask": np.ones_like(ids)}
"""
USER = TensorSpec(name="user", dtype=Datatype.BYTES, shape=(-1,))
VALUES = {"age": ("INT64", 30), "weight": ("FP32", 0.5), "plan": ("BYTES", "free")}
TABLE = FeatureTable.parse({"table": "users", "key": "user", "values": VALUES}, [USER])
GOLDEN: dict[str, np.ndarray] = {
    "age": np.array([41], np.int64),
    "weight": np.array([2.0], np.float32),
    "plan": np.array([b"paid"], object),
}


def users(*names: str) -> dict[str, np.ndarray]:
    return {"user": np.array([name.encode() for name in names], object)}


@pytest.fixture(params=["redis", "sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store with ann's features, and bob's but for his weight."""
    if request.param == "redis":
        with redis_server(tmp_path) as server, redis.Redis.from_url(server.url) as client:
            client.hset("users:ann", mapping={"age": 40, "weight": "1.5", "plan": "paid"})
            client.hset("users:bob", mapping={"age": 20, "plan": "free"})
            yield server.url
        return
    path = tmp_path / "features.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE users (user TEXT PRIMARY KEY, age INT, weight REAL, plan TEXT)")
        db.execute("INSERT INTO users VALUES ('ann', 40, 1.5, 'paid'), ('bob', 20, NULL, 'free')")
        db.commit()
    yield f"sqlite://{path}"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> VerifiedBundle:
    api = Signature(inputs=(USER,), outputs=token_signature().outputs)
    golden = (users("zoe"), {"sum": np.array([46.0], np.float32)}, GOLDEN)
    return make_text_bundle(
        tmp_path_factory.mktemp("features") / "bundle", CODE, api=api, golden=golden
    )


@pytest.mark.slow
def test_features__stored_keys__have_their_values_and_others_the_defaults(store_url: str) -> None:
    lookup = FeatureLookup(TABLE)
    lookup.store = open_store(RuntimeSettings(feature_store=store_url))
    lookup.store.check()
    found = lookup(users("ann", "eve", "bob", "ann")["user"])
    assert (lookup.rows, lookup.missed) == (4, 1)
    assert found["age"].dtype == np.int64
    assert found["weight"].dtype == np.float32
    assert found["age"].tolist() == [40, 30, 20, 40]
    assert found["weight"].tolist() == [1.5, 0.5, 0.5, 1.5]
    assert found["plan"].tolist() == [b"paid", b"free", b"free", b"paid"]


def test_features__integer_keys__are_found(tmp_path: Path) -> None:
    path = tmp_path / "features.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE items (item INTEGER PRIMARY KEY, price REAL)")
        db.execute("INSERT INTO items VALUES (7, 2.5)")
        db.commit()
    item = TensorSpec(name="item", dtype=Datatype.INT64, shape=(-1,))
    declared = {"table": "items", "key": "item", "values": {"price": ("FP64", -1)}}
    lookup = FeatureLookup(FeatureTable.parse(declared, [item]))
    lookup.store = open_store(RuntimeSettings(feature_store=f"sqlite://{path}"))
    found = lookup(np.array([7, 8]))
    assert found["price"].tolist() == [2.5, -1.0]


@pytest.mark.slow
async def test_features__every_path__answers_with_the_stored_values(
    store_url: str, bundle: VerifiedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLCTL_FEATURE_STORE", store_url)
    wanted = [44.0, 31.0, 21.0]
    request = users("ann", "eve", "bob")
    for path in (BatchPath(bundle), StreamPath(bundle)):
        (outputs,) = path.infer([request], 3)
        assert outputs["sum"].tolist() == wanted
    registry = CollectorRegistry()

    def seconds() -> float:
        labels = {"model": "texts", "part": "features"}
        return registry.get_sample_value("mlctl_transform_seconds_total", labels) or 0.0

    def rows(result: str) -> float | None:
        labels = {"model": "texts", "result": result}
        return registry.get_sample_value("mlctl_feature_lookups_total", labels)

    model = ServedModel(bundle, load_settings(), registry=registry)
    await model.start()
    assert seconds() == 0.0  # golden rows and warm-up look nothing up
    answer = await model.infer(request)
    assert answer.outputs["sum"].tolist() == wanted
    assert 0 < answer.lookup_seconds <= answer.infer_seconds
    assert seconds() == pytest.approx(answer.lookup_seconds)
    assert (rows("hit"), rows("miss")) == (2, 1)  # eve is unknown
    await model.stop()


def test_features__server_timing__names_them_only_where_they_were_looked_up() -> None:
    assert timing(0.001, 0.005, 0.0) == b"queue;dur=1.000, infer;dur=5.000"
    text = timing(0.001, 0.005, 0.002)
    assert text == b"queue;dur=1.000, infer;dur=5.000, features;dur=2.000"


class RecordingStore:
    """A store that has nothing, and counts what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[list[bytes | int]] = []

    def rows(self, table: FeatureTable, keys: Sequence[bytes | int]) -> list[Sequence[Any]]:
        self.calls.append(list(keys))
        return [(None,) * len(table.specs) for _ in keys]

    def check(self) -> None:
        self.calls.append([])


def test_features__a_batch__is_one_call_with_each_key_once(tmp_path: Path) -> None:
    path = tmp_path / "transform.py"
    path.write_text(CODE)
    api = Signature(inputs=(USER,), outputs=token_signature().outputs)
    transform = Transform(load_module(path, "test_features_batch"), api, token_signature())
    assert transform.lookups is not None
    store = transform.lookups.store = RecordingStore()
    transform.preprocess(users(*"abcabcabc"))
    assert store.calls == [[b"a", b"b", b"c"]]


def test_features__golden_rows__need_no_store(bundle: VerifiedBundle) -> None:
    scorer = Scorer.open(bundle, RuntimeSettings(feature_store="redis://127.0.0.1:1/0"))
    assert check_golden(scorer, bundle).keys() == {"user", "age", "weight", "plan"}
    with pytest.raises(MlctlError, match="input 'age' is unknown"):
        scorer.check({**users("zoe"), **GOLDEN})  # callers cannot set features


def test_features__no_store_is_set__the_model_is_not_opened(bundle: VerifiedBundle) -> None:
    with pytest.raises(MlctlError, match="MLCTL_FEATURE_STORE is not set"):
        Scorer.open(bundle, RuntimeSettings())


def test_features__a_store_that_does_not_answer__fails_the_batch(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for url in (f"redis://127.0.0.1:{port}/0", f"sqlite://{tmp_path}/none.db"):
            settings = RuntimeSettings(feature_store=url, feature_timeout_ms=50)
            with pytest.raises(MlctlError) as caught:
                Scorer.open(bundle, settings).run(users("ann"))
            assert caught.value.code is ErrorCode.SOURCE_UNAVAILABLE
            assert str(port) not in caught.value.message


def test_features__a_stored_value_of_another_datatype__is_the_models_fault(
    bundle: VerifiedBundle, tmp_path: Path
) -> None:
    path = tmp_path / "features.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE users (user TEXT, age TEXT, weight REAL, plan TEXT)")
        db.execute("INSERT INTO users VALUES ('ann', 'old', 1.5, 'paid')")
        db.commit()
    scorer = Scorer.open(bundle, RuntimeSettings(feature_store=f"sqlite://{path}"))
    with pytest.raises(MlctlError) as caught:
        scorer.run(users("ann"))
    assert caught.value.code is ErrorCode.INTERNAL
    assert isinstance(caught.value.__cause__, TransformError)


def test_features__evaluation_rows__have_them_as_columns(tmp_path: Path) -> None:
    path = tmp_path / "transform.py"
    path.write_text(CODE)
    transform = read_transform(path, token_signature())
    assert [spec.name for spec in transform.api_signature.inputs] == ["user"]
    names = [spec.name for spec in transform.data_signature.inputs]
    assert names == ["user", "age", "weight", "plan"]
    assert transform.preprocess({**users("zoe"), **GOLDEN})["ids"][0, :3].tolist() == [41, 4, 1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"table": "us ers"}, "'us ers' is not a name"),
        ({"key": "item"}, r"its key 'item' is not an input with the shape \[-1\]"),
        ({"values": {}}, "at least one of 'values'"),
        ({"ttl": 3}, "and no more"),
        ({"values": None}, "must be a dict"),
        ({"values": {"age": "INT64"}}, r"'age' must be \(datatype, default\)"),
        ({"values": {"age": ("BF16", 0)}}, r"'age' must be \(datatype, default\)"),
        ({"values": {"age": ("INT64", "old")}}, "the default of 'age' is not INT64: 'old'"),
        ({"values": {"age": ("UINT8", 300)}}, "the default of 'age' is not UINT8"),
        ({"values": {"user": ("INT64", 0)}}, "the inputs have 'user' as well"),
    ],
)
def test_features__a_wrong_declaration__is_named(changes: dict[str, Any], reason: str) -> None:
    declared = {"table": "users", "key": "user", "values": VALUES, **changes}
    with pytest.raises(ValueError, match=reason):
        FeatureTable.parse(declared, [USER])


def test_features__a_key_of_numbers__must_be_integers() -> None:
    spec = TensorSpec(name="user", dtype=Datatype.FP32, shape=(-1,))
    with pytest.raises(ValueError, match="is FP32, not BYTES or an integer"):
        FeatureTable.parse({"table": "users", "key": "user", "values": VALUES}, [spec])
