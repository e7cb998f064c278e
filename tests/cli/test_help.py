"""Help is there at once: nothing heavy is imported for it."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

PROGRAM = """
import sys
from firsthand.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    heavy = {"jax", "numpy", "matplotlib", "scipy", "equinox"} & set(sys.modules)
    assert not heavy, f"imported for help: {heavy}"
    sys.exit(end.code)
"""


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ([], ["new", "check", "train", "evaluate", "report", "export", "inspect", "machine", "simulator"]),
        (["train"], ["ROBOT", "--preset", "--episodes", "--seed", "--out", "--resume", "--eta", "--model.rate"]),
        (["evaluate"], ["RUN", "--episode", "--speed", "--json", "--oracle"]),
        (["report"], ["RUN", "--out"]),
        (["dashboard"], ["RUN", "--port", "--host"]),
        (["export"], ["RUN", "--format", "--episode", "--out"]),
        (["characterize"], ["ROBOT"]),
        (["inspect"], ["ROBOT", "--minutes", "--amplitude", "--seed", "--out"]),
    ],
)
def test_help_names_everything_and_imports_nothing_heavy(command: list[str], names: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in names:
        assert name in done.stdout
    assert "None" not in done.stdout
    assert done.stderr == ""


def test_a_terminal_that_knows_only_ascii() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "train", "--help"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--eta X" in done.stdout


def test_the_version() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{version('firsthand')}\n", "")
