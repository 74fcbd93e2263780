"""The packages that a Bento needs, with pinned versions.

Packages of mlctl are pinned to the versions installed here, which were tested. A transform can add
packages in `transform/requirements.txt`; each line is NAME==VERSION and nothing else, so a bundle
cannot bring URLs, files or installer options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from mlctl.bundle.manifest import TRANSFORM_REQUIREMENTS
from mlctl.bundle.verify import VerifiedBundle
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import RUNTIMES, install_hint, installed_version, require_onnxruntime

# All that an image needs: neither torch nor mlflow. BentoML adds itself, pinned.
REQUIREMENTS = (
    "googleapis-common-protos", "grpcio", "grpcio-health-checking", "grpcio-reflection",
    "hpack", "httptools", "numpy", "onnx", "orjson", "packaging", "platformdirs",
    "prometheus-client", "protobuf",
    "pydantic", "uvicorn", "uvloop",
)  # fmt: skip
# What a bundle of a language model needs besides.
_GENERATION = ("jinja2", "llguidance", "tokenizers")
MAX_BYTES = 16 << 10
_MAX_PACKAGES = 64
# ONNX Runtime's provider is linked to major version 10; a newer major does not load.
_TENSORRT = ("tensorrt-cu13", "10.16.1.11")
Installed = Callable[[str], str | None]


class RuntimeFlavor(StrEnum):
    """The runtime packages of a Bento: for CPUs, for NVIDIA GPUs, or with TensorRT too."""

    CPU = "cpu"
    GPU = "gpu"
    TRT = "trt"


def pin_requirements(
    bundles: Sequence[VerifiedBundle] = (),
    flavor: RuntimeFlavor | None = None,
    installed: Installed = installed_version,
) -> list[str]:
    """Return `package==version` of all packages of a Bento of `bundles`, sorted.

    Without a `flavor` the runtime is the installed one. Another flavor need not be installed: the
    CPU and GPU runtimes are released with the same versions. RUNTIME_MISSING for a package that is
    not installed, INVALID_INPUT for transforms that need different versions.
    """
    pins = dict[str, str]()
    generates = any(bundle.manifest.generation is not None for bundle in bundles)
    for name in (*REQUIREMENTS, *(_GENERATION if generates else ())):
        version = installed(name)
        if version is None:
            raise MlctlError(
                ErrorCode.RUNTIME_MISSING,
                f"package {name!r} is not installed",
                install_hint("generate" if name in _GENERATION else "serve"),
            )
        pins[name] = f"{name}=={version}"
    for name, pin in _runtime(flavor, installed):
        pins[name] = pin
    for bundle in bundles:
        for line in transform_requirements(bundle):
            _add(pins, line, bundle.manifest.name)
    return sorted(pins.values())


def transform_requirements(bundle: VerifiedBundle) -> tuple[str, ...]:
    """Return the lines of the transform's requirements; none without that file."""
    if all(entry.path != TRANSFORM_REQUIREMENTS for entry in bundle.manifest.files):
        return ()
    return parse_requirements(bundle.path(TRANSFORM_REQUIREMENTS).read_bytes())


def parse_requirements(content: bytes) -> tuple[str, ...]:
    """Parse lines NAME==VERSION or NAME[EXTRA]==VERSION; INVALID_INPUT for anything else.

    Comments and empty lines are skipped.
    """
    if len(content) > MAX_BYTES:
        raise _wrong(f"it has {len(content)} bytes (limit {MAX_BYTES})")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise _wrong("it is not UTF-8") from None
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    found = tuple(_line(number, line) for number, line in enumerate(lines, 1) if line)
    if len(found) > _MAX_PACKAGES:
        raise _wrong(f"it names {len(found)} packages (limit {_MAX_PACKAGES})")
    names = [_name(line) for line in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _wrong(f"it names {twice!r} twice")
    return found


def check_installed(lines: Iterable[str], installed: Installed = installed_version) -> None:
    """Raise RUNTIME_MISSING unless each of `lines` is installed in its version."""
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


def _runtime(flavor: RuntimeFlavor | None, installed: Installed) -> list[tuple[str, str]]:
    if flavor is None:
        require_onnxruntime(lambda name: installed(name) is not None)
        here = next(name for name in RUNTIMES if installed(name) is not None)
        return [(here, f"{here}=={installed(here)}")]
    versions = [version for name in RUNTIMES if (version := installed(name)) is not None]
    if not versions:
        require_onnxruntime(lambda name: installed(name) is not None)
    cpu, gpu = RUNTIMES
    if flavor is RuntimeFlavor.CPU:
        return [(cpu, f"{cpu}=={versions[0]}")]
    pins = [(gpu, f"{gpu}[cuda,cudnn]=={versions[0]}")]
    if flavor is RuntimeFlavor.TRT:
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
            f"the transform of model {model!r} needs {line}, but the Bento has {have}",
            f"Use the same version in {TRANSFORM_REQUIREMENTS}, or remove the line.",
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
