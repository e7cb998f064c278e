"""`firsthand` without its laboratory, and with it."""

import subprocess
import sys

import pytest

ALONE = """
import importlib.metadata, sys
found = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda group: () if group == "firsthand.commands" else found(group=group)
sys.modules["firsthand_lab"] = None
from firsthand.cli import main
main(sys.argv[1:])
"""
TOGETHER = "import sys; from firsthand.cli import main; main(sys.argv[1:])"


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", [("experiment", "--list"), ("compare", "excavator"), ("compare", "--help")])
def test_a_missing_laboratory_is_one_sentence(command: tuple[str, ...]) -> None:
    done = run(ALONE, *command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"firsthand: `firsthand {command[0]}` is part of firsthand-lab, which is not installed; "
        "install it with: pip install -c constraints.txt -e lab\n"
    )


def test_help_says_how_to_get_the_laboratory() -> None:
    done = run(ALONE, "--help")
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.replace("│", " ").split())
    assert "experiment and compare are part of firsthand-lab, which is not installed" in words
    assert "pip install -c constraints.txt -e lab" in words
    listed = words[words.index("subcommands") :]
    assert "train" in listed
    assert "experiment" not in listed


def test_with_the_laboratory_help_lists_its_commands() -> None:
    done = run(TOGETHER, "--help")
    assert done.returncode == 0, done.stderr
    assert "firsthand-lab" not in done.stdout
    for command in ("experiment", "compare"):
        assert command in done.stdout
