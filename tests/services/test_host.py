import asyncio
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from bundle.errors import ErrorCode, MlctlError
from bundle.verify import VerifiedBundle, seal
from services.golden import load_golden, save_golden
from services.host import ModelHost, Phase, require_model
from services.settings import Settings
from tests.support.bundles import expected, make_bundle

ROW = np.array([[1, 2, 3, 4]], dtype=np.float32)


def host_of(bundle: VerifiedBundle, **settings: float) -> ModelHost:
    return ModelHost(bundle, Settings.model_validate(settings), registry=CollectorRegistry())


def test_answers_only_between_start_and_stop(bundle: VerifiedBundle) -> None:
    async def main() -> None:
        host = host_of(bundle)
        with pytest.raises(MlctlError, match="starting"):
            host.infer({"x": ROW})
        await host.start()
        answer = await host.infer({"x": ROW})
        np.testing.assert_allclose(answer.outputs["y"], expected(ROW))
        last = host.infer({"x": ROW})
        await host.stop()
        assert (await last).batch_rows == 1
        with pytest.raises(MlctlError, match="stopping") as caught:
            host.infer({"x": ROW})
        assert caught.value.code is ErrorCode.UNAVAILABLE

    asyncio.run(main())


def test_wrong_golden_answers_keep_it_from_becoming_ready(tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "b")
    inputs, outputs = load_golden(made.path("golden.npz"))
    save_golden(made.root / "golden.npz", inputs, {"y": outputs["y"] + 1})
    host = host_of(seal(made.root, made.manifest))
    with pytest.raises(MlctlError) as caught:
        asyncio.run(host.start())
    assert caught.value.code is ErrorCode.PARITY_FAILED
    assert host.phase is Phase.NEW
    assert not host.ready


def test_a_model_whose_rows_depend_on_each_other_is_never_joined(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b", row_independent=False)

    async def main() -> None:
        host = host_of(bundle)
        await host.start()
        answers = await asyncio.gather(*(host.infer({"x": ROW * i}) for i in range(5)))
        await host.stop()
        for i, answer in enumerate(answers):
            want = expected(ROW * i, row_independent=False)
            np.testing.assert_allclose(answer.outputs["y"], want)
            assert answer.batch_rows == 1

    asyncio.run(main())


def test_a_caller_can_only_shorten_the_deadline(bundle: VerifiedBundle) -> None:
    async def main() -> None:
        host = host_of(bundle)
        await host.start()
        with pytest.raises(MlctlError) as caught:
            host.infer({"x": ROW}, timeout=0)
        assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
        await host.stop()

    asyncio.run(main())


def test_other_models_and_versions_are_not_here(bundle: VerifiedBundle) -> None:
    host = host_of(bundle)
    require_model(host, "tiny")
    require_model(host, "tiny", bundle.digest)
    for name, version in (("other", ""), ("tiny", "1")):
        with pytest.raises(MlctlError) as caught:
            require_model(host, name, version)
        assert caught.value.code is ErrorCode.MODEL_NOT_FOUND
