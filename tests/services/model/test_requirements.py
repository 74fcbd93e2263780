"""What a Bento needs: pinned, for a flavour, with what its transforms ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.services.model import requirements
from mlctl.services.model.requirements import (
    RuntimeFlavor,
    check_installed,
    parse_requirements,
    pin_requirements,
)
from mlctl.services.model.transform import load_transform
from tests.support.transforms import TOKENIZER, make_text_bundle

HERE = dict.fromkeys(requirements.REQUIREMENTS, "1.2.3")


def with_needs(root: Path, text: str, name: str = "texts") -> VerifiedBundle:
    folder = root / "transform"
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text(text)
    return make_text_bundle(root, TOKENIZER, name=name)


def test_pin_requirements__each__is_pinned_and_installed() -> None:
    assert all("==" in pin for pin in pin_requirements())
    assert not {"torch", "mlflow"} & {pin.partition("==")[0] for pin in pin_requirements()}
    with pytest.raises(MlctlError, match="'googleapis-common-protos'") as caught:
        pin_requirements(installed=lambda _: None)
    assert caught.value.code is ErrorCode.RUNTIME_MISSING


@pytest.mark.parametrize("runtime", ["onnxruntime", "onnxruntime-gpu"])
def test_pin_requirements__flavor_of_another_runtime__is_pinned(runtime: str) -> None:
    here = {**HERE, runtime: "1.31.1"}.get

    def runtimes(flavour: RuntimeFlavor | None) -> list[str]:
        return [
            pin for pin in pin_requirements((), flavour, here) if pin.startswith(("onnxr", "tens"))
        ]

    gpu = "onnxruntime-gpu[cuda,cudnn]==1.31.1"
    assert runtimes(None) == [f"{runtime}==1.31.1"]
    assert runtimes(RuntimeFlavor.CPU) == ["onnxruntime==1.31.1"]
    assert runtimes(RuntimeFlavor.GPU) == [gpu]
    assert runtimes(RuntimeFlavor.TRT)[0] == gpu
    assert runtimes(RuntimeFlavor.TRT)[1].startswith("tensorrt-cu13==10.")
    with pytest.raises(MlctlError, match="ONNX Runtime is not installed"):
        pin_requirements((), RuntimeFlavor.GPU, HERE.get)


def test_parse_requirements__names_with_versions__are_read() -> None:
    text = b"# what it needs\nRapid_Fuzz == 3.14.1  # fuzzy\n\nhttpx[http2]==0.28.1\n"
    assert parse_requirements(text) == ("rapid-fuzz==3.14.1", "httpx[http2]==0.28.1")


@pytest.mark.parametrize(
    "line",
    [
        "six", "six>=1.17", "six==1.*", "six==1.17,!=1.18", "six===1.17", "six~=1.17",
        "-r other.txt", "--index-url https://example.org", "-e .", "./six", "six.whl",
        "six @ https://example.org/six.whl", "git+https://example.org/six",
        "six==1.17; python_version<'4'", "six==1.17 --hash=sha256:00", "six==1.17\n SIX==1.17",
        "six==1.17\\\nother==1", "\xff==1",
    ],
)  # fmt: skip
def test_parse_requirements__any_other_line__is_rejected(line: str) -> None:
    with pytest.raises(MlctlError, match=r"transform/requirements\.txt") as caught:
        parse_requirements(line.encode("latin-1"))
    assert caught.value.code is ErrorCode.INVALID_INPUT


def test_parse_requirements__too_long__is_rejected() -> None:
    for text in (b"#" * 20_000, b"\n".join(b"p%d==1" % number for number in range(65))):
        with pytest.raises(MlctlError):
            parse_requirements(text)


def test_pin_requirements__transforms__add_theirs(tmp_path: Path) -> None:
    here = {**HERE, "onnxruntime": "1.31.1"}.get
    first = with_needs(tmp_path / "a", "six==1.17.0\nnumpy==1.2.3\n")
    same = with_needs(tmp_path / "b", "six[extra]==1.17.0", "others")
    pins = pin_requirements([first, same], None, here)
    assert "six[extra]==1.17.0" in pins
    assert len(pins) == len(requirements.REQUIREMENTS) + 2
    for number, line in enumerate(
        ("six==1.16.0", "numpy==2.0", "onnxruntime-gpu==1.31.1", "bentoml==1.0")
    ):
        other = with_needs(tmp_path / str(number), line, "others")
        with pytest.raises(MlctlError, match=f"'others' needs {line}") as caught:
            pin_requirements([first, other], None, here)
        assert caught.value.code is ErrorCode.INVALID_INPUT


def test_load_transform__missing_package__is_named(tmp_path: Path) -> None:
    bundle = with_needs(tmp_path / "a", "no-such-package==1.0\n")
    with pytest.raises(MlctlError, match="no-such-package is not installed") as caught:
        load_transform(bundle)
    assert caught.value.code is ErrorCode.RUNTIME_MISSING
    with pytest.raises(MlctlError, match=r"numpy is installed as \d"):
        check_installed(["numpy==0.1"])
    assert load_transform(with_needs(tmp_path / "b", "")) is not None
