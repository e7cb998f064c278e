"""The three distributions: each builds, and together they work in a clean environment; who installs what."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from documented import ROOT

PROJECTS = {"firsthand_onboard": ROOT / "onboard", "firsthand": ROOT, "firsthand_lab": ROOT / "lab"}
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def run(command: Sequence[str | Path], **options) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build_wheels(folder: Path) -> dict[str, Path]:
    """A wheel of each distribution, built from a copy so that nothing is left in the repository."""
    for name, project in PROJECTS.items():
        copy = folder / name
        shutil.copytree(project / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(project / file, copy / file)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    run([*build, "--disable-pip-version-check", "-w", folder, *(folder / name for name in PROJECTS)])
    return {path.name.split("-")[0]: path for path in folder.glob("*.whl")}


def make_environment(folder: Path, wheels: dict[str, Path]) -> Path:
    """An environment with the wheels, and with what they depend on borrowed from this one: nothing is downloaded."""
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    install = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q"]
    install += ["--disable-pip-version-check", "--no-deps", "--no-index", "--no-compile"]
    run([*install, *wheels.values()])
    borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return folder / "bin"


def test_the_wheels_work_in_a_clean_environment(tmp_path: Path) -> None:
    wheels = build_wheels(tmp_path / "wheels")
    for name in PROJECTS:
        check_contents(name, wheels[name])
    commands = make_environment(tmp_path / "clean", wheels)
    shell: dict[str, Any] = {"env": ENVIRONMENT, "cwd": tmp_path}
    for name in PROJECTS:
        place = run([commands / "python", "-c", f"import {name}; print({name}.__file__)"], **shell)
        assert Path(place).is_relative_to(tmp_path / "clean"), place
    assert run([commands / "firsthand", "--version"], **shell).strip() == version("firsthand")
    assert version("firsthand-onboard") in run([commands / "firsthand-onboard", "--version"], **shell)
    assert "convergence" in run([commands / "firsthand", "experiment", "--list"], **shell)


def check_contents(name: str, path: Path) -> None:
    """Every file of the package is in the wheel, and its licence, address and classifiers."""
    package = PROJECTS[name] / "src" / name
    files = {str(file.relative_to(package.parent)) for file in package.rglob("*") if file.is_file()}
    with zipfile.ZipFile(path) as wheel:
        packed = set(wheel.namelist())
        metadata = wheel.read(next(entry for entry in packed if entry.endswith(".dist-info/METADATA"))).decode()
    assert {file for file in files if "__pycache__" not in file} <= packed
    assert any(entry.endswith("/licenses/LICENSE") for entry in packed)
    assert "Project-URL: Paper" in metadata
    assert "Classifier: Typing :: Typed" in metadata


@pytest.mark.parametrize(
    ("target", "needed"), [("train", False), ("dashboard", False), ("test", True), ("peers", True)]
)
def test_who_installs_the_laboratory(target: str, needed: bool) -> None:
    steps = run(["make", "--dry-run", "--always-make", target], cwd=ROOT)
    installs = [line for line in steps.splitlines() if " pip install " in line]
    assert installs
    assert any(" -e 'lab" in line or " -e lab" in line for line in installs) == needed
