from pathlib import Path

import pytest

from tests.mutants import LIST, Change, read_equivalent

ROOT = Path(__file__).parents[2]


def test_equivalent_mutants__each_entry__changes_lines_of_its_file() -> None:
    """`make mutants` checks the rest; this fails at once where a listed line was edited."""
    changes = read_equivalent(LIST)
    assert changes
    for change in changes:
        code = {line.strip() for line in (ROOT / change.file).read_text().splitlines()}
        removed = {line.removeprefix("- ") for line in change.lines if line.startswith("- ")}
        assert removed <= code, change


def test_read_equivalent__entries_and_comments__are_counted(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    entry = "a.py  Some.method\n- x = 1\n+ x = 2\n= why\n"
    path.write_text(f"# comment\n\n{entry}\n{entry}")
    assert read_equivalent(path) == {Change("a.py", "Some.method", ("- x = 1", "+ x = 2")): 2}


@pytest.mark.parametrize("entry", ["a.py  f\n- x\n+ y\n", "a.py  f\nx\n+ y\n= why\n"])
def test_read_equivalent__entry_without_reason_or_sign__is_rejected(
    tmp_path: Path, entry: str
) -> None:
    path = tmp_path / "list.txt"
    path.write_text(entry)
    with pytest.raises(ValueError, match="not an entry"):
        read_equivalent(path)
