"""Programs of ours that are started by others of ours, in a folder that somebody else has filled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firsthand_onboard.child_process import module_command


@pytest.mark.parametrize("name", ["json", "types", "numpy", "runpy", "firsthand_onboard"])
def test_nothing_in_the_working_folder_is_imported(name: str, tmp_path: Path, monkeypatch) -> None:
    """Reading somebody's folder runs nothing in it, also where a command starts another process there."""
    (tmp_path / f"{name}.py").write_text("raise SystemExit('this was run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", os.getcwd())])
    done = subprocess.run([*module_command("firsthand_onboard"), "--version"], capture_output=True, text=True)
    assert "this was run" not in done.stderr
    assert done.returncode == 0, done.stderr


def test_who_searches_the_working_folder_goes_on_doing_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "beside.py").write_text("print('found')")
    assert subprocess.run(module_command("beside"), capture_output=True, text=True).stdout == "found\n"
