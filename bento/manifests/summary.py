"""The facts of a Bento that manifests depend on: its models, their size, the need for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlctl.bento.manifests.plan import ManifestModel
from mlctl.bento.manifests.resources import Resources, estimate, read_bench
from mlctl.services.layout.bento_layout import BentoContents, read_contents
from mlctl.services.layout.bento_store import BentoInfo


@dataclass(frozen=True, slots=True)
class BentoSummary:
    """A Bento to run; `name` is that of its model, or of all its models together.

    `digests` are those of its models and its own, which a pipeline's answers carry.
    """

    name: str
    model: ManifestModel
    digests: frozenset[str]
    model_bytes: int
    gpu: bool

    def resources(self, bench: Path | None, workers: int) -> Resources:
        """Return the resources of one replica, from the measurement `bench` or else estimated.

        INVALID_INPUT for a file that is not a measurement of this Bento.
        """
        if bench is not None:
            return read_bench(bench, self.digests, gpu=self.gpu)
        return estimate(self.model_bytes, workers, gpu=self.gpu)


def summary_of(bento: BentoInfo) -> BentoSummary:
    """Verify the Bento and summarize its models; raises as `read_contents` does."""
    packed = read_contents(bento.source)
    manifests = [bundle.manifest for bundle in packed.bundles]
    return BentoSummary(
        name=packed.name,
        model=ManifestModel(
            tag=bento.tag,
            digest=packed.digest,
            service=_service(bento.path, packed),
            max_rows=max(each.batching.max_rows for each in manifests),
        ),
        digests=frozenset((packed.digest, *(bundle.digest for bundle in packed.bundles))),
        model_bytes=sum(file.size for each in manifests for file in each.files),
        gpu=any(each.variant.target != "cpu" for each in manifests),
    )


def _service(folder: Path, packed: BentoContents) -> str:
    """Return BentoML's name of the service."""
    import yaml  # type: ignore[import-untyped]

    document = yaml.safe_load((folder / "bento.yaml").read_text())
    return str(document.get("entry_service") or packed.name)


def workers_of(settings: Mapping[str, str]) -> int:
    """Return the number of worker processes in the server's settings."""
    return int(settings.get("MLCTL_WORKERS", "1"))
