"""The lock of a Bento: from a file that is given, or from the package index."""

from __future__ import annotations

from pathlib import Path

from bento.containers.known_locks import KnownLocks
from bento.containers.lock import Lock, Platform, read_lock
from bento.containers.resolve import complete, proved, python_version, resolve
from bundle.clock import Clock, SystemClock
from bundle.errors import ErrorCode, MlctlError
from bundle.home import state_dir
from services.runtime.bento_store import BentoInfo
from services.runtime.signing import signing_requirements


def requirements_of(bento: BentoInfo) -> list[str]:
    """`package==version` of all that the Bento itself names, BentoML among it.

    One that is signed also needs what proves its signatures.
    """
    path = bento.path / "env" / "python" / "requirements.txt"
    if not path.is_file():
        raise MlctlError(
            ErrorCode.BENTO_NOT_FOUND, f"the Bento {bento.tag} does not say what it needs"
        )
    named = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    return [*named, *signing_requirements(bento.source)]


def lock_for(
    bento: BentoInfo, platform: Platform, file: Path | None, clock: Clock | None = None
) -> Lock:
    """The lock of all that `bento` needs; with `file` no index is asked, without once a day.

    Raises as `read_lock` and `resolve` do.
    """
    requirements = requirements_of(bento)
    if file is None:
        asked = [requirements, proved(requirements), platform.oci, python_version()]
        known = KnownLocks(state_dir("cache", "locks"), clock or SystemClock())
        return known.get(asked, lambda: resolve(requirements, platform))
    return complete(read_lock(file, requirements), requirements, platform)
