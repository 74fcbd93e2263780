from importlib import metadata

import pytest

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import RUNTIMES, installed_version, require_onnxruntime


def test_installed_version__package_is_installed__is_its_version() -> None:
    assert installed_version("pytest") == metadata.version("pytest")


def test_installed_version__package_is_missing__is_none() -> None:
    assert installed_version("no-such-distribution") is None


def test_runtimes__of_this_environment__are_exactly_one() -> None:
    assert len([name for name in RUNTIMES if installed_version(name)]) == 1


def test_runtimes__one__passes() -> None:
    require_onnxruntime(lambda name: name == "onnxruntime")
    require_onnxruntime(lambda name: name == "onnxruntime-gpu")
    require_onnxruntime()  # this environment's


def test_runtimes__none__names_both_extras() -> None:
    with pytest.raises(MlctlError) as caught:
        require_onnxruntime(lambda _: False)
    assert caught.value.code is ErrorCode.RUNTIME_MISSING
    assert "'.[cpu]'" in caught.value.hint
    assert "gpu" in caught.value.hint


def test_runtimes__two__fails() -> None:
    with pytest.raises(MlctlError) as caught:
        require_onnxruntime(lambda _: True)
    assert caught.value.code is ErrorCode.RUNTIME_CONFLICT
