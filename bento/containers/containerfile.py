"""The text of a Containerfile; nothing in it is executed here, and no value can add a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bundle.errors import ErrorCode, MlctlError

HTTP_PORT = 3000
GRPC_PORT = 3001
# A number, so that a cluster can prove that it is not root; "nonroot" in many base images.
USER = 65532
# With a digest the engine takes exactly that image; only who can reach a registry knows it.
_BASE = re.compile(r"[a-z0-9][a-zA-Z0-9._:/-]{0,250}(@sha256:[0-9a-f]{64})?")
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,126}")
_ENVIRONMENT = {
    "BENTOML_CONTAINERIZED": "true",
    "BENTOML_DO_NOT_TRACK": "True",
    "BENTOML_HOME": "/tmp/bentoml",  # noqa: S108 - in the image
    "BENTOML_HOST": "0.0.0.0",  # noqa: S104 - the container's own addresses
    "BENTOML_PORT": str(HTTP_PORT),
    "HOME": "/tmp",  # noqa: S108
    "MLCTL_GRPC_HOST": "0.0.0.0",  # noqa: S104
    "MLCTL_GRPC_PORT": str(GRPC_PORT),
    "MLCTL_HOME": "/tmp/mlctl",  # noqa: S108
    "PATH": "/opt/venv/bin:/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONUNBUFFERED": "1",
}
# The container toolkit of NVIDIA gives a GPU only to images that ask for it.
_GPU_ENVIRONMENT = {
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "NVIDIA_VISIBLE_DEVICES": "all",
}
_TEXT = """\
# The base image; name it with its digest (NAME@sha256:...) for the same image each time.
ARG BASE={base}

FROM ${{BASE}} AS packages
# Where pip looks, if not at the public index. What is written here is not in the last image.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY requirements.lock /tmp/requirements.lock
RUN python -m venv --without-pip /opt/venv \\
    && python -m pip --python /opt/venv/bin/python install --no-cache-dir --no-deps \\
        --disable-pip-version-check --require-hashes --only-binary :all: \\
        -r /tmp/requirements.lock
COPY bento /srv/bento
COPY health.py sbom.cdx.json requirements.lock /srv/
RUN /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash \\
        /srv/bento/src/services /srv/bento/src/bundle \\
    && chmod -R a+rX,go-w /srv /opt/venv

FROM ${{BASE}}
# A server installs nothing.
RUN python -m pip uninstall --yes --quiet --root-user-action ignore pip setuptools wheel
COPY --from=packages /opt/venv /opt/venv
COPY --from=packages /srv /srv
{labels}
{environment}
WORKDIR /srv/bento
EXPOSE {http} {grpc}
# All that a server writes is below /tmp; the rest of the file system may be read-only.
USER {user}:{user}
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \\
    CMD ["/opt/venv/bin/python", "-I", "/srv/health.py"]
ENTRYPOINT ["/opt/venv/bin/python", "-m", "bentoml", "serve", "/srv/bento"]
"""


@dataclass(frozen=True, slots=True)
class Image:
    """What differs between images: the base, the labels, and whether there is a GPU."""

    base: str
    labels: Mapping[str, str]
    gpu: bool = False


def containerfile(image: Image) -> str:
    """The Containerfile; INVALID_INPUT for a base or a label that cannot be written into one."""
    environment = {**_ENVIRONMENT, **(_GPU_ENVIRONMENT if image.gpu else {})}
    labels = {**base_labels(image.base), **image.labels}
    return _TEXT.format(
        base=image.base,
        labels="\n".join(
            f"LABEL {_label(name)}={_quoted(labels[name])}" for name in sorted(labels)
        ),
        environment="\n".join(f"ENV {name}={environment[name]}" for name in sorted(environment)),
        http=HTTP_PORT,
        grpc=GRPC_PORT,
        user=USER,
    )


def base_labels(base: str) -> dict[str, str]:
    """The OCI annotations that name the base image; INVALID_INPUT if it cannot be one."""
    if _BASE.fullmatch(base) is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{base!r} is not the name of an image",
            "Write it as NAME:TAG or NAME@sha256:DIGEST.",
        )
    name, _, digest = base.partition("@")
    labels = {"org.opencontainers.image.base.name": name}
    return {**labels, "org.opencontainers.image.base.digest": digest} if digest else labels


def _label(name: str) -> str:
    if _LABEL.fullmatch(name) is None:
        raise MlctlError(ErrorCode.INVALID_INPUT, f"{name!r} is not the name of a label")
    return name


def _quoted(text: str) -> str:
    """`text` in double quotes: names from a registry are data, and end no line."""
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return '"' + re.sub(r'(["\\$])', r"\\\1", shown) + '"'
