"""The three distributions: each builds, and together they work in a clean environment; who installs what."""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from documented import ROOT

PROJECTS = {"firsthand_onboard": ROOT / "onboard", "firsthand": ROOT, "firsthand_lab": ROOT / "lab"}
_SPEC = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
assert _SPEC is not None
assert _SPEC.loader is not None
release = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(release)
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


def test_all_places_have_one_version() -> None:
    assert release.check() == []


def test_a_release_writes_version_and_date_everywhere(tmp_path: Path) -> None:
    files = {name for name, _ in release.PLACES}
    for name in (*files, release.CHANGELOG):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / release.CHANGELOG).write_text(
        "# Changelog\n\n## Unreleased\n\n### Added\n\n- More.\n\n## 0.0.1 (then)\n"
    )
    changed = release.release("9.8.7", date(2031, 2, 3), tmp_path)
    assert set(changed) == files | {release.CHANGELOG}
    assert {found for _, found in release.versions(tmp_path)} == {"9.8.7"}
    text = (tmp_path / release.CHANGELOG).read_text()
    assert "## Unreleased\n\n## 9.8.7 (2031-02-03)\n\n### Added\n\n- More.\n" in text
    with pytest.raises(SystemExit, match="nothing under '## Unreleased'"):
        release.release("9.8.8", date(2031, 2, 4), tmp_path)
    (tmp_path / "CITATION.cff").write_text("version: 1.0.0\n")
    assert release.check(tmp_path) == ["CITATION.cff: version: {} has 1.0.0, but pyproject.toml has 9.8.7"]


@pytest.mark.parametrize("version", [None, "v0.2.0", "0.2", "0.2.0-beta"])
def test_a_release_needs_a_version(version: str | None) -> None:
    with pytest.raises(SystemExit, match=r"must be like 0\.2\.0"):
        release.main([] if version is None else [version])


@pytest.mark.parametrize(
    ("target", "needed"), [("train", False), ("dashboard", False), ("test", True), ("peers", True)]
)
def test_who_installs_the_laboratory(target: str, needed: bool) -> None:
    steps = run(["make", "--dry-run", "--always-make", target], cwd=ROOT)
    installs = [line for line in steps.splitlines() if " pip install " in line]
    assert installs
    assert any(" -e 'lab" in line or " -e lab" in line for line in installs) == needed
