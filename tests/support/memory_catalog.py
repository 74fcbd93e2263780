"""A registry in memory, so that tests need no MLflow."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from mlctl.bundle.verify import VerifiedBundle, verify
from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.core.text import suggestion
from mlctl.registry.catalog import CHAMPION, PublishedModel, PublishReport, SourceModel
from mlctl.registry.names import ModelRef, optimized_name, parse_ref


class MemoryCatalog:
    """`Catalog` over plain dictionaries, with the methods of champions.

    `aliases` maps (model name, alias) to a version; `published` and `reports` keep what
    was registered, in order.
    """

    def __init__(self, sources: Iterable[SourceModel] = ()) -> None:
        self.sources = {(source.name, source.version): source for source in sources}
        self.published: list[PublishedModel] = []
        self.reports: list[PublishReport] = []
        self.aliases: dict[tuple[str, str], str] = {}
        self.bundles: dict[str, VerifiedBundle] = {}

    def resolve(self, text: str, *, allow_pickle: bool = False) -> SourceModel:
        ref = parse_ref(text)
        version = self._version(ref)
        source = self.sources.get((ref.name, version))
        if source is None:
            known = suggestion(ref.name, {name for name, _ in self.sources}, "registered models")
            raise MlctlError(ErrorCode.MODEL_NOT_FOUND, f"{ref} is not registered; {known}")
        if source.pickle_allowed and not allow_pickle:
            raise MlctlError(ErrorCode.PICKLE_REJECTED, f"{ref} is stored as a pickle")
        return source

    def publish(
        self, bundle: VerifiedBundle, source: SourceModel, report: PublishReport
    ) -> PublishedModel:
        name = optimized_name(source.name)
        mine = [model for model in self.published if model.name == name]
        for model in mine:
            if model.digest == bundle.digest:
                return model
        version = str(len(mine) + 1)
        uri = str(ModelRef(name, version=version))
        model = PublishedModel(name, version, bundle.digest, uri, "", source.uri, source.version)
        self.published.append(model)
        self.bundles[bundle.digest] = bundle
        self.reports.append(report)
        return model

    def find_optimized(self, text: str) -> PublishedModel:
        ref = parse_ref(text)
        version = self.aliases.get((ref.name, ref.alias or ""), ref.version)
        for model in reversed(self.published):
            if (model.name, model.version) == (ref.name, version):
                return model
        raise MlctlError(ErrorCode.MODEL_NOT_FOUND, f"{text} is not registered")

    def fetch_bundle(self, published: PublishedModel, destination: Path) -> VerifiedBundle:
        shutil.copytree(self.bundles[published.digest].root, destination)
        return verify(destination, published.digest)

    def find_by_digest(self, digest: str) -> PublishedModel:
        for model in reversed(self.published):
            if model.digest == digest:
                return model
        raise MlctlError(
            ErrorCode.MODEL_NOT_FOUND, f"no registered version has the digest {digest}"
        )

    def write_champion(self, digest: str) -> PublishedModel:
        model = self.find_by_digest(digest)
        self.aliases[model.name, CHAMPION] = model.version
        self.aliases[parse_ref(model.source_uri).name, CHAMPION] = model.source_version
        return model

    def _version(self, ref: ModelRef) -> str:
        if ref.alias is not None:
            return self.aliases.get((ref.name, ref.alias), "")
        versions = (version for name, version in self.sources if name == ref.name)
        return ref.version or max(versions, key=int, default="")
