"""What is in a Bento, as a CycloneDX 1.6 document: its packages and its models, with digests.

It is made of the Bento and its lock file alone, so the same ones give the same bytes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bundle import __version__
from bundle.verify import VerifiedBundle
from services.layout import Packed
from services.ship.lock import Lock, Package, Platform
from services.store import CONTENT_LABEL, BentoInfo

if TYPE_CHECKING:
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component

_NAMESPACE = uuid.UUID("5b0f5a0e-6c0c-5d5f-9d6e-0a6a4f3f6c11")
_ROOT = "bento"


def sbom_of(bento: BentoInfo, packed: Packed, lock: Lock, platform: Platform) -> bytes:
    """The document's bytes: JSON with a newline at its end."""
    from cyclonedx.output.json import JsonV1Dot6

    bom = _document(bento, packed, lock, platform)
    return (JsonV1Dot6(bom).output_as_string(indent=2) + "\n").encode()


def _document(bento: BentoInfo, packed: Packed, lock: Lock, platform: Platform) -> Bom:
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType

    name, _, version = bento.tag.partition(":")
    told = {"mlctl:platform": platform.oci, "mlctl:digest": packed.digest}
    if content := bento.labels.get(CONTENT_LABEL):
        told["mlctl:content-digest"] = content
    root = Component(
        name=name,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=_ROOT,
        properties=[Property(name=key, value=told[key]) for key in sorted(told)],
    )
    tool = Component(name="mlctl", version=__version__, type=ComponentType.APPLICATION)
    models = {bundle.manifest.name: _model(bundle) for bundle in packed.bundles}
    packages = {each.name: _package(each) for each in lock.packages}
    metadata = BomMetaData(component=root, tools=[tool], timestamp=None)
    bom = Bom(
        components=[*models.values(), *packages.values()],
        metadata=metadata,
        serial_number=uuid.uuid5(_NAMESPACE, f"{platform.oci} {packed.digest} {lock.text()}"),
    )
    bom.metadata.timestamp = _created(bento)
    _register(bom, root, [*models.values(), *_roots(lock, packages)])
    for each in lock.packages:
        needed = [packages[need] for need in each.needs if need in packages]
        bom.register_dependency(packages[each.name], needed)
    return bom
