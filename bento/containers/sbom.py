"""The bill of materials of a Bento: packages and models with digests, as CycloneDX 1.6.

It depends on the Bento and its lock file alone: the same input gives the same bytes.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mlctl import __version__
from mlctl.bento.containers.lock import Lock, Package, Platform
from mlctl.bundle.manifest import MANIFEST_NAME
from mlctl.bundle.verify import VerifiedBundle
from mlctl.services.layout.bento_layout import BentoContents
from mlctl.services.layout.bento_store import CONTENT_LABEL, BentoInfo

if TYPE_CHECKING:
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component

_NAMESPACE = uuid.UUID("5b0f5a0e-6c0c-5d5f-9d6e-0a6a4f3f6c11")
_ROOT = "bento"


def sbom_of(bento: BentoInfo, packed: BentoContents, lock: Lock, platform: Platform) -> bytes:
    """Return the document as JSON with a newline at its end."""
    from cyclonedx.output.json import JsonV1Dot6

    bom = _document(bento, packed, lock, platform)
    return (JsonV1Dot6(bom).output_as_string(indent=2) + "\n").encode()


def _document(bento: BentoInfo, packed: BentoContents, lock: Lock, platform: Platform) -> Bom:
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.tool import ToolRepository

    name, _, version = bento.tag.partition(":")
    facts = {"mlctl:platform": platform.oci, "mlctl:digest": packed.digest}
    if content := bento.labels.get(CONTENT_LABEL):
        facts["mlctl:content-digest"] = content
    root = Component(
        name=name,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=_ROOT,
        properties=[Property(name=key, value=facts[key]) for key in sorted(facts)],
    )
    tool = Component(name="mlctl", version=__version__, type=ComponentType.APPLICATION)
    models = {bundle.manifest.name: _model(bundle) for bundle in packed.bundles}
    packages = {each.name: _package(each) for each in lock.packages}
    tools = ToolRepository(components=[tool])
    metadata = BomMetaData(component=root, tools=tools, timestamp=_created(bento))
    bom = Bom(
        components=[*models.values(), *packages.values()],
        metadata=metadata,
        serial_number=uuid.uuid5(_NAMESPACE, f"{platform.oci} {packed.digest} {lock.text()}"),
    )
    bom.register_dependency(root, [*models.values(), *(packages[one] for one in _tops(lock))])
    for each in lock.packages:
        needed = [packages[need] for need in each.needs if need in packages]
        bom.register_dependency(packages[each.name], needed)
    return bom


def _tops(lock: Lock) -> list[str]:
    """Return the packages that no other package needs."""
    needed = {need for each in lock.packages for need in each.needs}
    return [each.name for each in lock.packages if each.name not in needed]


def _package(package: Package) -> Component:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    name, version = package.name, package.version
    licence = package.licence
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"pypi/{name}",
        purl=PackageURL("pypi", name=name, version=version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in package.sha256],
        licenses=[] if licence is None else [LicenseFactory().make_from_string(licence)],
    )


def _model(bundle: VerifiedBundle) -> Component:
    """Describe a model with its files; its hash is the bundle's digest, that of its manifest."""
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.component import Component, ComponentType

    manifest = bundle.manifest
    files = {MANIFEST_NAME: bundle.digest}
    files |= {entry.path: entry.sha256 for entry in manifest.files}
    facts = {
        "mlctl:recipe": manifest.variant.recipe,
        "mlctl:source": manifest.source.uri,
        "mlctl:source-sha256": manifest.source.sha256,
    }
    return Component(
        name=manifest.name,
        version=bundle.digest,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=f"model/{manifest.name}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=bundle.digest)],
        properties=[Property(name=name, value=facts[name]) for name in sorted(facts)],
        components=[
            Component(
                name=path,
                type=ComponentType.FILE,
                bom_ref=f"model/{manifest.name}/{path}",
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=files[path])],
            )
            for path in sorted(files)
        ],
    )


def _created(bento: BentoInfo) -> datetime:
    """Return when the Bento was built; the document has no time of its own."""
    import yaml  # type: ignore[import-untyped]

    document = yaml.safe_load((bento.path / "bento.yaml").read_text())
    found = datetime.fromisoformat(str(document["creation_time"]))
    return found if found.tzinfo else found.replace(tzinfo=UTC)
