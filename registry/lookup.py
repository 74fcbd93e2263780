"""Find versions in MLflow, with errors that name similar or existing ones.

Thin functions over an MLflow client; all raise MODEL_NOT_FOUND.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.text import printable, suggestion
from mlctl.registry.catalog import (
    CHAMPION,
    DIGEST_TAG,
    RECIPE_TAG,
    SOURCE_URI_TAG,
    SOURCE_VERSION_TAG,
    ModelRow,
    PublishedModel,
    Selection,
)
from mlctl.registry.names import OPTIMIZED_SUFFIX, ModelRef, optimized_name
from mlctl.registry.tracking import missing_model_hint, registry_address

_PAGE = 100
_DIGEST = re.compile(r"[0-9a-f]{64}")


def model_names(client: Any) -> list[str]:
    """Return the names of all registered models."""
    return [model.name for model in _all_models(client)]


def find_version(client: Any, ref: ModelRef) -> Any:
    """Return the MLflow version that `ref` names; without version and alias the newest."""
    model = _registered(client, ref.name)
    version = ref.version
    if ref.alias is not None:
        version = model.aliases.get(ref.alias)
        if version is None:
            raise _not_found(
                f"model {ref.name!r} has no alias @{ref.alias}",
                suggestion(ref.alias, model.aliases, "its aliases"),
            )
    versions = {str(found.version): found for found in versions_of(client, ref.name)}
    if version is None:
        version = max(versions, key=int, default="")
    if str(version) not in versions:
        listed = ", ".join(sorted(versions, key=int)) or "none"
        raise _not_found(f"model {ref.name!r} has no version {version}", f"its versions: {listed}")
    return versions[str(version)]


def find_published(client: Any, ref: ModelRef) -> Selection:
    """Return the optimized version that `ref` names, directly or through its source version."""
    if ref.name.endswith(OPTIMIZED_SUFFIX) and (ref.version or ref.alias):
        exact = find_version(client, ref)
        if DIGEST_TAG not in exact.tags:
            raise _not_found(f"{ref} was not made by `mlctl optimize`", "it has no digest")
        named = "version" if ref.version else f"alias @{ref.alias}"
        return Selection(as_published(exact), f"{_made_of(exact)}, chosen by its {named}")
    source = ref.name.removesuffix(OPTIMIZED_SUFFIX)
    version = str(find_version(client, ref).version) if ref.version or ref.alias else None
    label = str(ModelRef(source, version=version))
    found = [
        item
        for item in versions_of(client, optimized_name(ref.name))
        if DIGEST_TAG in item.tags and (version is None or item.tags.get(SOURCE_URI_TAG) == label)
    ]
    if found:
        return _newest(client, found, label)
    names = model_names(client)
    if source not in names and optimized_name(source) not in names:
        raise _no_model(source, names)
    raise MlctlError(
        ErrorCode.MODEL_NOT_FOUND,
        f"{label} has no optimized version",
        f"Make one with `mlctl optimize {label} --data FILE`.",
    )


def _newest(client: Any, found: Sequence[Any], label: str) -> Selection:
    newest = max(found, key=lambda item: int(item.version))
    why = f"{_made_of(newest)}, the only optimized version of {label}"
    if len(found) > 1:
        why = f"{_made_of(newest)}, the newest of {len(found)} optimized versions of {label}"
    champion = client.get_registered_model(newest.name).aliases.get(CHAMPION)
    if champion is not None and str(champion) != str(newest.version):
        why += f"; @{CHAMPION} is version {champion}"
    return Selection(as_published(newest), why)


def _made_of(version: Any) -> str:
    recipe = printable(version.tags.get(RECIPE_TAG, "a variant"))
    return f"{recipe} of {printable(version.tags.get(SOURCE_URI_TAG, 'an unknown model'))}"


def find_digest(client: Any, digest: str, name: str | None = None) -> PublishedModel | None:
    """Return the newest version with that bundle digest, in `name` or any model; None if none."""
    if not _DIGEST.fullmatch(digest):
        raise MlctlError(ErrorCode.INVALID_INPUT, "a digest is 64 hexadecimal digits")
    query = f"tags.`{DIGEST_TAG}` = '{digest}'" + (f" and name = '{name}'" if name else "")
    found = client.search_model_versions(query)
    newest = max(found, key=lambda version: int(version.version), default=None)
    return None if newest is None else as_published(newest)


def versions_of(client: Any, name: str | None = None) -> list[Any]:
    """Return all versions of a registered model, or of all; `name` is from a parsed reference."""
    query = None if name is None else f"name = '{name}'"
    versions: list[Any] = []
    token = None
    while True:
        page = client.search_model_versions(query, page_token=token)
        versions += page
        token = page.token
        if not token:
            return versions


def rows(client: Any) -> Iterator[ModelRow]:
    """Yield every version of every registered model, by name, newest first within each."""
    aliases: dict[tuple[str, str], list[str]] = {}
    for model in _all_models(client):
        for alias, version in sorted(model.aliases.items()):
            aliases.setdefault((model.name, str(version)), []).append(alias)
    for version in sorted(versions_of(client), key=lambda item: (item.name, -int(item.version))):
        number = str(version.version)
        yield ModelRow(
            name=version.name,
            version=number,
            aliases=tuple(aliases.get((version.name, number), ())),
            digest=version.tags.get(DIGEST_TAG),
            source_uri=version.tags.get(SOURCE_URI_TAG),
        )


def as_published(version: Any) -> PublishedModel:
    """Return an MLflow model version that carries mlctl's tags as a value."""
    return PublishedModel(
        name=version.name,
        version=str(version.version),
        digest=version.tags[DIGEST_TAG],
        uri=str(ModelRef(version.name, version=str(version.version))),
        run_id=version.run_id or "",
        source_uri=version.tags.get(SOURCE_URI_TAG, ""),
        source_version=version.tags.get(SOURCE_VERSION_TAG, ""),
    )


def _registered(client: Any, name: str) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise _no_model(name, model_names(client)) from error


def _all_models(client: Any) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_registered_models(max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _no_model(name: str, names: list[str]) -> MlctlError:
    near = suggestion(name, names, "registered models")
    return MlctlError(
        ErrorCode.MODEL_NOT_FOUND,
        f"no model {name!r} is registered in {registry_address()}; {near}",
        missing_model_hint(),
    )


def _not_found(problem: str, listed: str) -> MlctlError:
    return MlctlError(ErrorCode.MODEL_NOT_FOUND, f"{problem}; {listed}")
