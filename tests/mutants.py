"""Change the five pure modules and fail unless each change is noticed: `make mutants`.

mutmut makes the changes; strict mypy or the unit tests of the module have to fail.
`equivalent_mutants.txt` lists the changes that have no effect. An entry is

    FILE  FUNCTION
    - the line before
    + the line after
    = why it has no effect

The run fails on a change that survives and is not listed, and on an entry that no change matches.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_name("equivalent_mutants.txt")
# A change that lets a loop run on is noticed by the limit of mutmut on its tests' CPU time.
_NOTICED = {"caught by type check", "killed", "timeout"}


class Change(NamedTuple):
    """A change of one function: its lines with `- ` or `+ ` in front, without indentation."""

    file: str
    function: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.file}  {self.function}", *self.lines])


def read_equivalent(path: Path) -> Counter[Change]:
    """Return the changes that the list calls equivalent; lines that begin with # are comments."""
    found: Counter[Change] = Counter()
    for block in path.read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if line and line[0] != "#"]
        if not lines:
            continue
        (file, function), changed, why = lines[0].split(), lines[1:-1], lines[-1]
        if not why.startswith("= ") or not all(line[:2] in {"- ", "+ "} for line in changed):
            raise ValueError(f"not an entry: {block}")
        found[Change(file, function, tuple(changed))] += 1
    return found


def main(modules: list[str]) -> int:
    """Run the changes of `modules` (default: all five); return the exit code."""
    shutil.rmtree("mutants", ignore_errors=True)
    patterns = [each.removesuffix(".py").replace("/", ".") + ".*" for each in modules]
    subprocess.run([sys.executable, "-m", "mutmut", "run", *patterns], check=True)
    total: Counter[str] = Counter()
    survived: Counter[Change] = Counter()
    for name, file, status in _results():
        if modules and file not in modules:
            continue
        total[file] += 1
        if status not in _NOTICED:
            survived[_change(name, file)] += 1
    allowed = read_equivalent(LIST)
    if modules:
        allowed = Counter({each: n for each, n in allowed.items() if each.file in modules})
    for file, count in sorted(total.items()):
        left = sum(n for each, n in survived.items() if each.file == file)
        print(f"{file}: {count} changes, {count - left} noticed, {left} not")
    for title, changes in (
        ("no test notices, and equivalent_mutants.txt does not list", survived - allowed),
        ("equivalent_mutants.txt lists, and no change survives as", allowed - survived),
    ):
        for each in sorted(changes.elements()):
            print(f"\n{title}:\n{each}")
    return 0 if survived == allowed else 1


def _results() -> Iterator[tuple[str, str, str]]:
    """Yield name, file and status of each change; mutmut is installed by `make mutants` alone."""
    from mutmut.__main__ import collect_source_file_mutation_data
    from mutmut.stats import status_by_exit_code

    for data, name, code in collect_source_file_mutation_data(mutant_names=())[0]:
        yield name, str(data.path), status_by_exit_code[code]


def _change(name: str, file: str) -> Change:
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    module = file.removesuffix(".py").replace("/", ".")
    function = name.removeprefix(module + ".").partition("__mutmut_")[0]
    if function.startswith("xǁ"):
        function = function.removeprefix("xǁ").replace("ǁ", ".")
    lines = [line for line in get_diff_for_mutant(name).splitlines()[2:] if line[0] in "-+"]
    return Change(
        file, function.removeprefix("x_"), tuple(f"{line[0]} {line[1:].strip()}" for line in lines)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
