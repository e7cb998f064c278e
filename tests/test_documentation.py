"""The documentation's code: Python blocks run, commands are parsed by the real parsers.

The Python blocks of a page run one after the other, as a reader would type them, with few episodes. A block that cannot
run has the reason in the line above: `<!-- not run: REASON -->`.
"""

import importlib.util
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from documented import ROOT
from firsthand.cli import parse_command
from firsthand.errors import UserError
from firsthand.training.presets import PRESETS
from firsthand_onboard.cli import parser as onboard_parser

PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "lab/*.md", "onboard/*.md")
    for path in ROOT.glob(pattern)
)
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
NOT_RUN = re.compile(r"<!-- not run: .{10,} -->")
EPISODES = re.compile(r"\bepisodes=\d+")
INLINE = re.compile(r"`firsthand ([a-z][^`\n]*)`")
COMMANDS = ("firsthand", "firsthand-onboard")


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    line: int
    above: str
    code: str


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = (ROOT / page).read_text().splitlines()
    opened = None
    for number, line in enumerate(lines):
        if line.startswith("```"):
            if opened is None:
                opened = number
            else:
                above = lines[opened - 1] if opened else ""
                yield Block(lines[opened][3:].strip(), opened + 1, above, "\n".join(lines[opened + 1 : number]))
                opened = None
    assert opened is None, f"{page}:{opened + 1}: a block without an end"


def python_blocks(page: str) -> list[Block]:
    """The blocks that run."""
    return [block for block in blocks(page) if block.language == "python" and not NOT_RUN.fullmatch(block.above)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simplest preset in the place of the fast one, with little to compute: what it learns does not matter here."""
    changes = {"policy_step.cg_iterations": 2, "model.steps": 10}
    monkeypatch.setitem(PRESETS, "fast", PRESETS["paper-exact"].with_changes(changes))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)])
def test_the_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "documentation"}
    for block in python_blocks(page):
        if named := re.match(r"# (\w+\.py)\n", block.code):
            Path(named[1]).write_text(block.code)
        code = "\n" * block.line + EPISODES.sub("episodes=2", block.code)
        exec(compile(code, str(ROOT / page), "exec"), names)


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of ours in a block, as words."""
    if block.language in ("", "bash", "sh", "console"):
        for line in block.code.replace("\\\n", " ").splitlines():
            if line.split() and Path(line.split()[0]).name in COMMANDS:
                words = shlex.split(line, comments=True)
                yield [Path(words[0]).name, *words[1:]]


@pytest.mark.parametrize("page", [p for p in PAGES if any(True for b in blocks(p) for _ in commands(b))])
def test_the_commands_are_understood(page: str) -> None:
    for block in blocks(page):
        for command in commands(block):
            understand(command, f"{page}:{block.line}")


def understand(command: list[str], where: str) -> None:
    """Parse a command without running it."""
    program, *arguments = command
    if arguments in (["--version"], ["--help"]):
        return
    try:
        if program == "firsthand":
            parse_command(arguments)
        else:
            onboard_parser().parse_args(arguments)
    except (SystemExit, UserError) as error:
        pytest.fail(f"{where}: `{' '.join(command)}` is not understood: {error}")


def script(name: str) -> Any:
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sentences_are_short() -> None:
    lengths = script("long_sentences")
    averages = {page.name: lengths.average(page.read_text()) for page in lengths.pages()}
    assert {name: round(words, 1) for name, words in averages.items() if words > lengths.AVERAGE} == {}


def test_how_sentences_are_counted() -> None:
    lengths = script("long_sentences")
    page = "# Heading\n\nOne [link with](x.md) `code --option` here. Two; with\na semicolon.\n\n| a |\n\n- An item.\n"
    assert list(lengths.sentences(page)) == [
        (3, "One link with CODE here."),
        (3, "Two; with a semicolon."),
        (8, "An item."),
    ]
    assert lengths.words("5 cm – about 2 in") == 5
    assert lengths.average(page) == pytest.approx((5 + 4 + 2) / 3)


def test_tables_stand_alone() -> None:
    """A line right below a table would become one of its rows."""
    stuck = [
        f"{page}:{number}"
        for page in [*PAGES, *(str(path.relative_to(ROOT)) for path in DECISIONS)]
        for number, (line, after) in enumerate(itertools.pairwise((ROOT / page).read_text().splitlines()), 1)
        if line.startswith("|") and after.strip() and not after.startswith("|")
    ]
    assert stuck == []


def test_lines_are_short() -> None:
    """Rows of tables, and words longer than a line, cannot be broken."""
    long = [
        f"{page}:{number}"
        for page in [*PAGES, *(str(path.relative_to(ROOT)) for path in DECISIONS)]
        for number, line in enumerate((ROOT / page).read_text().splitlines(), 1)
        if len(line) >= 100 and not re.match(r"\s*\||\S+$", line)
    ]
    assert long == []
