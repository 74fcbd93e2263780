"""The packages that a Bento needs, each with its one version.

Its own are pinned to what is installed here: that is what was proved. A transform may name
more in `transform/requirements.txt`; each line there is NAME==VERSION and nothing else, so
that no address, file or option of an installer can come with a bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from bundle.errors import ErrorCode, MlctlError
from bundle.manifest import TRANSFORM_REQUIREMENTS
from bundle.packages import RUNTIMES, install_hint, installed_version, require_onnxruntime
from bundle.verify import VerifiedBundle

# What the image needs and no more: neither torch nor mlflow. BentoML adds itself, pinned.
REQUIREMENTS = (
    "googleapis-common-protos", "grpcio", "grpcio-health-checking", "grpcio-reflection",
    "hpack", "httptools", "numpy", "onnx", "orjson", "packaging", "platformdirs",
    "prometheus-client", "protobuf",
    "pydantic", "pydantic-settings", "uvicorn", "uvloop",
)  # fmt: skip
MAX_BYTES = 16 << 10
_MOST = 64
# What ONNX Runtime's provider is linked to is major version 10; a newer major does not load.
_TENSORRT = ("tensorrt-cu13", "10.16.1.11")
Installed = Callable[[str], str | None]


class RuntimeFlavor(StrEnum):
    """For which processors a Bento's packages are."""

    CPU = "cpu"
    GPU = "gpu"
    TRT = "trt"


def pin_requirements(
    bundles: Sequence[VerifiedBundle] = (),
    flavour: RuntimeFlavor | None = None,
    installed: Installed = installed_version,
) -> list[str]:
    """`package==version` for all that a Bento of `bundles` needs, sorted.

    Without a `flavour` the runtime is the one that is installed here. The others need not be:
    the runtimes for CPU and GPU come out together, under the same version.
    RUNTIME_MISSING for a package that is not here, INVALID_INPUT for transforms that do not
    agree with each other or with the server.
    """
    pins = dict[str, str]()
    for name in REQUIREMENTS:
        version = installed(name)
        if version is None:
            raise MlctlError(
                ErrorCode.RUNTIME_MISSING,
                f"package {name!r} is not installed",
                install_hint("serve"),
            )
        pins[name] = f"{name}=={version}"
    for name, pin in _runtime(flavour, installed):
        pins[name] = pin
    for bundle in bundles:
        for line in transform_requirements(bundle):
            _add(pins, line, bundle.manifest.name)
    return sorted(pins.values())


def transform_requirements(bundle: VerifiedBundle) -> tuple[str, ...]:
    """The lines of the transform's requirements; none without that file."""
    if all(entry.path != TRANSFORM_REQUIREMENTS for entry in bundle.manifest.files):
        return ()
    return parse_requirements(bundle.path(TRANSFORM_REQUIREMENTS).read_bytes())


def parse_requirements(content: bytes) -> tuple[str, ...]:
    """The lines NAME==VERSION or NAME[EXTRA]==VERSION of a file; INVALID_INPUT for anything else.

    Comments and empty lines are left out.
    """
    if len(content) > MAX_BYTES:
        raise _wrong(f"it has more than {MAX_BYTES} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise _wrong("it is not UTF-8") from None
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    found = tuple(_line(number, line) for number, line in enumerate(lines, 1) if line)
    if len(found) > _MOST:
        raise _wrong(f"it names more than {_MOST} packages")
    names = [_name(line) for line in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _wrong(f"it names {twice!r} twice")
    return found


def check_installed(lines: Iterable[str], installed: Installed = installed_version) -> None:
    """RUNTIME_MISSING unless each of `lines` is installed here, in its version."""
    for line in lines:
        requirement = Requirement(line)
        have = installed(requirement.name)
        if have is None or have not in requirement.specifier:
            here = "is not installed" if have is None else f"is installed as {have}"
            raise MlctlError(
                ErrorCode.RUNTIME_MISSING,
                f"the transform needs {line}, but {requirement.name} {here}",
                f"Install it where the model is served: `pip install '{line}'`.",
            )


def _runtime(flavour: RuntimeFlavor | None, installed: Installed) -> list[tuple[str, str]]:
    if flavour is None:
        require_onnxruntime(lambda name: installed(name) is not None)
        here = next(name for name in RUNTIMES if installed(name) is not None)
        return [(here, f"{here}=={installed(here)}")]
    versions = [version for name in RUNTIMES if (version := installed(name)) is not None]
    if not versions:
        require_onnxruntime(lambda name: installed(name) is not None)
    cpu, gpu = RUNTIMES
    if flavour is RuntimeFlavor.CPU:
        return [(cpu, f"{cpu}=={versions[0]}")]
    pins = [(gpu, f"{gpu}[cuda,cudnn]=={versions[0]}")]
    if flavour is RuntimeFlavor.TRT:
        name, known = _TENSORRT
        pins.append((name, f"{name}=={installed(name) or known}"))
    return pins


def _add(pins: dict[str, str], line: str, model: str) -> None:
    name = _name(line)
    runtimes = {*RUNTIMES, "bentoml"}
    known = pins.get(name)
    if known is None and name not in runtimes:
        pins[name] = line
        return
    if known is None or not _agree(known, line):
        have = known or "its own version of it"
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"the transform of model {model!r} asks for {line}, but the Bento has {have}",
            f"Name the same version in {TRANSFORM_REQUIREMENTS}, or leave the line out.",
        )
    extras = sorted(Requirement(known).extras | Requirement(line).extras)
    named = f"{name}[{','.join(extras)}]" if extras else name
    pins[name] = f"{named}{Requirement(known).specifier}"


def _agree(one: str, other: str) -> bool:
    return Requirement(one).specifier == Requirement(other).specifier


def _line(number: int, line: str) -> str:
    try:
        requirement = Requirement(line)
        one = [each.version for each in requirement.specifier if each.operator == "=="]
        version = Version(one[0]) if len(one) == len(requirement.specifier) == 1 else None
    except (InvalidRequirement, InvalidVersion):  # a version may end with `.*`
        version = None
    if version is None or requirement.url or requirement.marker:
        raise _wrong(f"line {number} is not NAME==VERSION")
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{canonicalize_name(requirement.name)}{extras}=={version}"


def _name(line: str) -> str:
    return canonicalize_name(Requirement(line).name)


def _wrong(reason: str) -> MlctlError:
    return MlctlError(
        ErrorCode.INVALID_INPUT,
        f"{TRANSFORM_REQUIREMENTS}: {reason}",
        "Each line names one package with its exact version, such as rapidfuzz==3.14.1.",
    )
