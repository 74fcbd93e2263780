import json
from pathlib import Path

from tests.branches import table


def test_table__files_of_two_packages__has_the_sums_of_each_and_of_all(tmp_path: Path) -> None:
    def summary(branches: int, lines: int) -> dict[str, object]:
        measured = {"covered_branches": branches, "num_branches": 10, "percent_covered": 0.5}
        return {"summary": {**measured, "covered_lines": lines, "num_statements": 20}}

    files = {"cli/a.py": summary(10, 20), "cli/b.py": summary(0, 10), "bundle/c.py": summary(8, 18)}
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps({"files": files}))
    assert [line.split() for line in table(path)[1:]] == [
        ["bundle", "80.0", "90.0"],
        ["cli", "50.0", "75.0"],
        ["all", "60.0", "80.0"],
    ]
