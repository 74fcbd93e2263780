"""Packages that an image can have besides those of its server: `mlctl containerize --with`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.packages import install_hint, installed_version

# By the names of mlctl's own extras, which the hints about missing packages name.
_BATCH = ("flatbuffers", "fsspec", "pyarrow")
_KAFKA = ("confluent-kafka",)
_REDIS = ("redis[hiredis]",)
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "batch": _BATCH,
    "stream": (*_KAFKA, *_REDIS),
    "s3": ("s3fs", *_BATCH),
    "gcs": ("gcsfs", *_BATCH),
    "azure": ("adlfs", *_BATCH),
    "postgres": ("adbc-driver-postgresql", *_BATCH),
    "duckdb": ("duckdb",),
    "kafka": _KAFKA,
    "redis": _REDIS,
    "avro": ("confluent-kafka[schemaregistry]", "fastavro"),
    "ray": ("ray", *_BATCH),
    "sampling": ("pyarrow",),
    "otel": ("opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk"),
}


def extra_requirements(extras: Iterable[str], requirements: Iterable[str]) -> list[str]:
    """Return `package==version` of the packages that `extras` add to `requirements`, sorted.

    The versions are the ones installed here. RUNTIME_MISSING if one is not installed.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    named = {canonicalize_name(Requirement(line).name) for line in requirements}
    found = set[str]()
    for extra in extras:
        for line in EXTRAS[extra]:
            name = canonicalize_name(Requirement(line).name)
            version = installed_version(name)
            if version is None:
                raise MlctlError(
                    ErrorCode.RUNTIME_MISSING,
                    f"--with {extra} takes the installed version of {name}, which is not installed",
                    install_hint(extra),
                )
            if name not in named:
                found.add(f"{line}=={version}")
    return sorted(found)
