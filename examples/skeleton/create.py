"""Write the project skeleton: one Jinja2 template per file, with the model's name as its value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlctl.core.errors import ErrorCode, MlctlError
from mlctl.registry.names import bundle_name

TEMPLATES = {
    "README.md": "README.md.j2",
    "train.py": "train.py.j2",
    "rows.py": "rows.py.j2",
    "transform.py": "transform.py.j2",
    "rollout.yaml": "rollout.yaml.j2",
    ".env": "env.j2",
    ".gitignore": "gitignore.j2",
    ".github/workflows/release.yml": "release.yml.j2",
}


@dataclass(frozen=True, slots=True)
class Project:
    """A written project: its folder, the name of its model, and its files."""

    folder: Path
    model: str
    files: tuple[Path, ...]


def create_project(folder: Path) -> Project:
    """Write the skeleton to `folder`, whose name becomes the model's name.

    Existing files are never overwritten: INVALID_INPUT names the first one, and nothing is written.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    target = folder.absolute()
    model = bundle_name(target.name)
    files = tuple(target / name for name in TEMPLATES)
    if existing := [file for file in files if file.exists() or file.is_symlink()]:
        raise MlctlError(
            ErrorCode.INVALID_INPUT,
            f"{existing[0]} already exists",
            "Name a folder that is new or has none of these files: " + ", ".join(TEMPLATES) + ".",
        )
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - the only value is a name of letters, digits, ".", "-", "_"
        # GitHub's expressions have Jinja2's own marks.
        variable_start_string="<{",
        variable_end_string="}>",
        keep_trailing_newline=True,
    )
    for file, template in zip(files, TEMPLATES.values(), strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(environment.get_template(template).render(model=model))
    return Project(target, model, files)
