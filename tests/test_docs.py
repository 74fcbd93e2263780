"""The documents name what exists: pages and anchors, files, commands, options, variables, metrics.

Blocks marked `sh` run in `make docs-test` (`docs/run.py`), those of the tutorial, batch.md and
stream.md in `tests/examples` as well, the code of recipes.md and transforms.md in the tests of
these parts. All other commands are parsed by the CLI's own options, Python is compiled and YAML is
read.
"""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import yaml  # type: ignore[import-untyped]

from docs.diagrams import batching_svg, chain_svg
from docs.generate import filled, rollout_schema_text, settings_table
from docs.run import RUNNABLE, unexplained_blocks
from mlctl.cli.main import cli
from mlctl.cli.runners.image import image
from mlctl.core.variables import OTHER_VARIABLES
from mlctl.services.online.settings import ServerSettings
from tests.test_architecture import PACKAGES, ROOT, sources

DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(^|\s)#.*")
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
    if line.startswith(("from mlctl import ", "import mlctl")):  # the Python package
        return
    try:
        lexer = shlex.shlex(_COMMENT.sub("", line), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.commenters = ""  # the `#` of a stream's URL is none
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
        runner = image.commands["stream" if command.name == "stream" else "batch"]
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
def test_documents__each_link__has_a_target(path: Path) -> None:
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
def test_documents__each_named_file__exists(path: Path) -> None:
    spoken = (code.partition("::")[0] for code in _CODE.findall(_FENCE.sub("", path.read_text())))
    named = {code for code in spoken if _FILE.fullmatch(code)}
    assert not [code for code in sorted(named) if not (ROOT / code).exists()]


@each_document
def test_documents__each_command_and_option__exists(path: Path) -> None:
    wrong = {
        " ".join(words): found
        for line in command_lines(path.read_text())
        for words in calls(line)
        if (found := unknown(words))
    }
    assert not wrong


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that `words` name, and the words after its name."""
    command: click.Command = cli
    rest = list(words)
    while isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    return command, rest


def usage_errors(words: list[str]) -> list[str]:
    """Return the missing arguments and options and the wrong values of one call of the CLI."""
    command, rest = command_of(words)
    if isinstance(command, click.Group) or {"...", "--help"} & set(rest):
        return []
    rest = rest[: rest.index("--")] if "--" in rest else rest
    # click keeps the option that the first context of a command asks for.
    context = click.Context(command, help_option_names=["-h", "--help"])
    values, _, _ = command.make_parser(context).parse_args(rest)
    found = []
    for each in command.params:
        value = values.get(each.name or "")
        if each.required and not (isinstance(value, str | tuple | list) and value):
            found.append(f"no {each.human_readable_name}")
        if isinstance(each.type, click.Choice) and isinstance(value, str):
            found += [] if value in each.type.choices else [value]
    return found


@each_document
def test_blocks__commands__have_all_arguments_and_valid_values(path: Path) -> None:
    wrong = {
        " ".join(words): found
        for language, block in _BLOCK.findall(path.read_text())
        if language in {"", "sh", "bash", "console"} and path.name != "commands.md"
        for line in block.replace("\\\n", " ").splitlines()
        for words in calls(line)
        if re.search(r"(^|[\s/$(])mlctl ", line) and (found := usage_errors(words))
    }
    assert not wrong


@each_document
def test_blocks__commands__run_in_docs_test_or_say_why_not(path: Path) -> None:
    runs = path.relative_to(ROOT).as_posix() in RUNNABLE
    assert unexplained_blocks(path.read_text(), runs=runs) == []


@each_document
def test_blocks__python_and_yaml__can_be_read(path: Path) -> None:
    for language, block in _BLOCK.findall(path.read_text()):
        if language == "python":
            ast.parse(textwrap.dedent(block))
        elif language == "yaml":
            yaml.safe_load(block)


@each_document
def test_generated_parts__committed__are_what_the_code_says(path: Path) -> None:
    page = path.read_text()
    assert page == filled(page), "run python -m docs.generate"


def test_rollout_schema__committed__is_what_the_code_says() -> None:
    page = ROOT / "docs" / "rollout.schema.json"
    assert page.read_text() == rollout_schema_text(), "run python -m docs.generate"


def test_settings__table__has_every_variable() -> None:
    listed = set(re.findall(r"^\| `(\w+)`", settings_table(), re.MULTILINE))
    fields = {f"MLCTL_{name.upper()}" for name in ServerSettings.model_fields}
    assert listed == fields | set(OTHER_VARIABLES)


def test_metrics__of_every_page__are_in_the_code() -> None:
    code = "\n".join(path.read_text() for package in PACKAGES for path in sources(package))
    named = {
        (path.name, name)
        for path in DOCUMENTS
        if path.name != "CHANGELOG.md"
        for name in re.findall(r"`(mlctl_[a-z_]+)`", path.read_text())
    }
    # The names of streams' metrics have their prefix from one place, counters their ending.
    forms = {
        (page, name): {name, name.removesuffix("_total"), name.removeprefix("mlctl_stream_")}
        for page, name in named
    }
    for names in forms.values():
        names |= {name.removesuffix("_total") for name in names}
    assert not [key for key, names in forms.items() if not any(f'"{n}"' in code for n in names)]


# Words with which this project once renamed things that the field has a word for.
_AVOIDED = re.compile(
    r"\b(whoever|nobody|told|tells|heed(s|ed)?|obey(s|ed)?|refus(e|es|ed|al)|turn(s|ed)? away|"
    r"bears?|in its turn|all the same|lanes?|colour of|desk|no more than a look|who asks)\b",
    re.IGNORECASE,
)

_LOCATED = re.compile(r"`tests/[^`]*`")  # the names of tests are no prose


def test_words__of_every_page__are_the_fields_own() -> None:
    found = {
        (path.name, match[0])
        for path in DOCUMENTS
        for match in _AVOIDED.finditer(_LOCATED.sub("", _FENCE.sub("", path.read_text())))
    }
    assert not found


@pytest.mark.parametrize(
    ("name", "picture"), [("chain.svg", chain_svg), ("batching.svg", batching_svg)]
)
def test_pictures__committed__are_what_the_code_draws(
    name: str, picture: Callable[[], str]
) -> None:
    assert (ROOT / "docs" / "images" / name).read_text() == picture()


def test_curl__sends_json__names_its_type() -> None:
    """By itself curl calls what it sends a form, which the server rejects."""
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
        ("mlctl optimize digits", ["no data"]),
        ("mlctl bench", ["no URL|BENTO"]),
        ("mlctl build digits --runtime tpu  # a comment", ["tpu"]),
        ("mlctl stream run a --in sqlite://x#in --out sqlite://x#out", []),
    ],
)
def test_usage_errors__wrong_command__are_found(line: str, found: list[str]) -> None:
    assert [error for words in calls(line) for error in usage_errors(words)] == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("mlctl bench digits --rat 5", ["--rat"]),
        ("mlctl stream run a --in kafka://b:9092#in --ot kafka://b:9092#out", ["--ot"]),
        ("A=b mlctl stream peak x | mlctl nothing", ["peak"]),
        ("mlctl up shop digits --port 8000  # --porta", []),
        ("cat x && mlctl precomputed flip scores 7 --json", []),
    ],
)
def test_unknown__line_with_a_wrong_word__is_found(line: str, found: list[str]) -> None:
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
