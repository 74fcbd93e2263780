"""The text of a Containerfile. No value can add a line or an instruction to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlctl.bento.templates import environment
from mlctl.core.errors import ErrorCode, MlctlError

HTTP_PORT = 3000
GRPC_PORT = 3001
# A number, so that a cluster can check that it is not root; "nonroot" in many base images.
USER = 65532
_BASE = re.compile(r"[a-z0-9][a-zA-Z0-9._:/-]{0,250}(@sha256:[0-9a-f]{64})?")


@dataclass(frozen=True, slots=True)
class Image:
    """What differs between images: the Bento's tag, the base, the labels, the need for a GPU."""

    tag: str
    base: str
    labels: Mapping[str, str]
    gpu: bool = False


def containerfile(image: Image) -> str:
    """Return the Containerfile; INVALID_INPUT for a base that is not the name of an image."""
    templates = environment(Path(__file__).with_name("templates"), _argument)
    return templates.get_template("Containerfile.j2").render(
        tag=image.tag,
        base=image.base,
        labels={**base_labels(image.base), **image.labels},
        gpu=image.gpu,
        http_port=HTTP_PORT,
        grpc_port=GRPC_PORT,
        user=USER,
    )


def base_labels(base: str) -> dict[str, str]:
    """Return the OCI annotations of the base image; INVALID_INPUT if it is not an image's name."""
    if _BASE.fullmatch(base) is None:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{base!r} is not the name of an image",
            "Write it as NAME:TAG or NAME@sha256:DIGEST.",
        )
    name, _, digest = base.partition("@")
    labels = {"org.opencontainers.image.base.name": name}
    return {**labels, "org.opencontainers.image.base.digest": digest} if digest else labels


def _argument(value: object) -> str:
    """Return a number as it is, and text in double quotes, without variables or line breaks."""
    if isinstance(value, int):
        return str(value)
    text = "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(value)
    )
    return '"' + re.sub(r'(["\\$])', r"\\\1", text) + '"'
