"""What manifests need to know of a Bento: its models, their size, whether they need a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bento.manifests.plan import ManifestModel
from bento.manifests.resources import Resources, guess, read_bench
from services.runtime.bento_layout import BentoContents, read_contents
from services.runtime.bento_store import BentoInfo


@dataclass(frozen=True, slots=True)
class Subject:
    """A Bento to run; `name` is that of its model, or of all its models together.

    `digests` are its models', and its own: a pipeline's answers bear that.
    """

    name: str
    model: ManifestModel
    digests: frozenset[str]
    model_bytes: int
    gpu: bool

    def resources(self, bench: Path | None, workers: int) -> Resources:
        """Of one replica, from the measurement `bench`, else guessed; INVALID_INPUT."""
        if bench is not None:
            return read_bench(bench, self.digests, gpu=self.gpu)
        return guess(self.model_bytes, workers, gpu=self.gpu)


def subject_of(bento: BentoInfo) -> Subject:
    """Verify the Bento and describe its models; raises as `bento_layout.unpack` does."""
    packed = read_contents(bento.path / "src")
    manifests = [bundle.manifest for bundle in packed.bundles]
    return Subject(
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
    """The name under which BentoML knows the service."""
    import yaml  # type: ignore[import-untyped]

    document = yaml.safe_load((folder / "bento.yaml").read_text())
    return str(document.get("entry_service") or packed.name)


def workers_of(settings: dict[str, str]) -> int:
    """How many processes the settings ask for."""
    return int(settings.get("MLCTL_WORKERS", "1"))
