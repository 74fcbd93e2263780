"""What the pages tell a reader to type."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_whoever_sends_json_says_so() -> None:
    """By itself curl calls what it sends a form, which the server refuses."""
    lines = [
        (page.name, line)
        for page in PAGES
        for line in page.read_text().splitlines()
        if "curl" in line and "/v2/" in line
    ]
    assert lines
    assert [line for line in lines if " -d " in line[1] and "application/json" not in line[1]] == []
