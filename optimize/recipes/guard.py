"""Running a recipe that may be a stranger's: what it raises and leaves behind is its own fault.

Only a disk that is full or broken is not: no other recipe could go on there.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from bundle.errors import MlctlError
from bundle.manifest import MODEL_NAME
from optimize.recipes.base import DATA_NAME, Details, Recipe, Workbench
from registry.names import printable
from registry.quiet import first_line
from services.runtime.graph import read_graph

_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


def build_guarded(recipe: Recipe, source: Path, directory: Path, bench: Workbench) -> Details:
    """What `recipe.build` gives, its files checked; ValueError says what is wrong with either.

    OSError only for the disk; MlctlError passes through.
    """
    try:
        details: Any = recipe.build(source, directory, bench)
    except (MlctlError, ValueError):
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and error.errno in _DISK:
            raise
        raise ValueError(f"{type(error).__name__}: {first_line(error)}") from error
    _check_files(directory)
    if not isinstance(details, Details):
        raise ValueError(f"its build returned {type(details).__name__} and no Details")  # noqa: TRY004
    if not all(isinstance(text, str) for pair in details.settings.items() for text in pair):
        raise ValueError("its settings must be texts")
    return details


def _check_files(directory: Path) -> None:
    for path in sorted(directory.iterdir()):
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"it left {printable(path.name)!r}, which is no plain file")
    if not (directory / MODEL_NAME).is_file():
        raise ValueError(f"it wrote no {MODEL_NAME}")
    for path in read_graph(directory / MODEL_NAME).files:
        if path.name not in (MODEL_NAME, DATA_NAME):
            name = printable(path.name)
            raise ValueError(f"its weights are in {name!r}, where only {DATA_NAME} goes along")
