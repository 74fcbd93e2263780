"""What the documents name is there: pages and their parts, files, commands, options, variables."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from cli.main import cli
from cli.runners.image import image
from services.online.settings import ServerSettings
from tests.test_architecture import PACKAGES, ROOT, sources

DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(
    r"(?:bundle|registry|optimize|services|rollout|cli|examples|tests|benchmarks|docs|deploy)"
    r"(?:/[\w.-]+)+/?"
)
_VARIABLE = re.compile(r"\bMLCTL_[A-Z0-9_]*[A-Z0-9]\b")
# Made of a property of librdkafka: MLCTL_KAFKA_SASL_PASSWORD is sasl.password. X is any setting.
_MADE_UP = ("MLCTL_KAFKA", "MLCTL_X")
_ENDS = {"|", "||", "&&", "&", ";", ">", "<"}

each_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=[path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
)


@cache
def anchors(path: Path) -> frozenset[str]:
    """The parts of a page, named as forges name them."""
    headings = _HEADING.findall(_FENCE.sub("", path.read_text()))
    return frozenset(
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        .lower()
        .replace(" ", "-")
        for heading in headings
    )


def command_lines(text: str) -> Iterator[str]:
    """What a document says to type: lines of blocks, joined where they go on, and inline code."""
    for block in _FENCE.findall(text):
        yield from block.replace("\\\n", " ").splitlines()[1:-1]
    yield from _CODE.findall(_FENCE.sub("", text))


def calls(line: str) -> Iterator[list[str]]:
    """The words behind each `mlctl` of a line, up to the end of that command."""
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # a sentence with an apostrophe
        return
    while "mlctl" in words:
        words = words[words.index("mlctl") + 1 :]
        end = next((at for at, word in enumerate(words) if word in _ENDS), len(words))
        yield words[:end]


def unknown(words: list[str]) -> list[str]:
    """The options in `words` that the command which they name does not have, or its name."""
    command: click.Command = cli
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.commands.get(name)
        if found is None:
            return [name] if re.fullmatch(r"[a-z]+", name) else []
        command = found
    if "--" in rest:  # the options of a runner follow
        runner = image.commands[rest[rest.index("--runner") + 1]]
        dashes = rest.index("--")
        return unknown_options(runner, rest[dashes:]) + unknown_options(command, rest[:dashes])
    return unknown_options(command, rest)


def unknown_options(command: click.Command, words: list[str]) -> list[str]:
    known = {"--help", "--version", "--json", "-h"}
    for parameter in command.params:
        known |= {*parameter.opts, *parameter.secondary_opts}
    given = (word.partition("=")[0].rstrip(".,:") for word in words)
    return [word for word in given if re.fullmatch(r"--?[a-z][\w-]*", word) and word not in known]


@each_document
def test_every_link_leads_somewhere(path: Path) -> None:
    wrong = []
    for link in _LINK.findall(_FENCE.sub("", path.read_text())):
        target, _, part = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        place = (path.parent / target).resolve() if target else path
        if not place.exists() or (part and part not in anchors(place)):
            wrong.append(link)
    assert not wrong


@each_document
def test_every_file_that_is_named_is_there(path: Path) -> None:
    spoken = (code.partition("::")[0] for code in _CODE.findall(_FENCE.sub("", path.read_text())))
    named = {code for code in spoken if _FILE.fullmatch(code)}
    assert not [code for code in sorted(named) if not (ROOT / code).exists()]


@each_document
def test_every_command_and_option_is_known(path: Path) -> None:
    wrong = {
        " ".join(words): found
        for line in command_lines(path.read_text())
        for words in calls(line)
        if (found := unknown(words))
    }
    assert not wrong


def test_whoever_sends_json_says_so() -> None:
    """By itself curl calls what it sends a form, which the server refuses."""
    lines = [
        (path.name, line)
        for path in DOCUMENTS
        for line in path.read_text().splitlines()
        if "curl" in line and "/v2/" in line
    ]
    assert lines
    assert [line for line in lines if " -d " in line[1] and "application/json" not in line[1]] == []


def variables_in_code(path: Path) -> set[str]:
    """Return the variables that are strings of their own: a comment or a message reads none."""
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _VARIABLE.fullmatch(node.value)
    }


def test_variables__of_every_page__are_read_by_the_code() -> None:
    known = {
        name
        for package in PACKAGES
        for path in sources(package)
        for name in variables_in_code(path)
    }
    # A server's settings are fields, which pydantic reads under this prefix.
    known |= {f"MLCTL_{name.upper()}" for name in ServerSettings.model_fields}
    wrong = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in DOCUMENTS
        if path.name != "CHANGELOG.md"  # it names what is gone
        for name in _VARIABLE.findall(path.read_text())
        if name not in known and not name.startswith(_MADE_UP)
    }
    assert not wrong


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("mlctl bench digits --rat 5", ["--rat"]),
        ("A=b mlctl stream peak x | mlctl nothing", ["peak"]),
        ("mlctl up shop digits --port 8000  # --porta", []),
        ("cat x && mlctl precomputed flip scores 7 --json", []),
    ],
)
def test_what_is_wrong_would_be_found(line: str, found: list[str]) -> None:
    assert [word for words in calls(line) for word in unknown(words)][: len(found) or None] == found


def test_install__every_command_and_hint__names_the_checkout() -> None:
    """On the public index `mlctl` is another project: its name there installs foreign code."""
    places = [ROOT / name for name in (*PACKAGES, "tests", "docs", "benchmarks", "deploy")]
    files = [*ROOT.glob("*.*"), *(path for place in places for path in place.rglob("*.*"))]
    named = re.compile(r"pip install (?:-[^ ]+ [^ ]+ )*['\"]?mlctl(?:-serving)?\b[^\n`]*")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        if path.suffix in {".py", ".md", ".yaml", ".toml"} and path.is_file()
        for match in named.finditer(path.read_text())
        # These two warn of that name.
        if path not in {ROOT / "README.md", Path(__file__)}
    ]
    assert found == []
