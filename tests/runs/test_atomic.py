import errno
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from firsthand.errors import UserError
from firsthand.runs import atomic


def test_a_file_is_written_and_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic.write_bytes(path, b"one")
    atomic.write_bytes(path, b"two")
    atomic.write_text(tmp_path / "text", "η")
    assert path.read_bytes() == b"two"
    assert (tmp_path / "text").read_bytes() == "η".encode()
    assert sorted(os.listdir(tmp_path)) == ["file", "text"]


def test_json_is_valid_for_any_reader(tmp_path: Path) -> None:
    value = {"a": (1, np.float32(0.5)), "limit": math.inf, "low": -math.inf, "x": math.nan, "p": Path("q")}
    atomic.write_json(tmp_path / "file", value)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    read = json.loads((tmp_path / "file").read_text(), parse_constant=refuse)
    assert read == {"a": [1, 0.5], "limit": "inf", "low": "-inf", "x": "nan", "p": "q"}
    assert float(read["limit"]) == math.inf


def test_the_file_is_flushed_before_the_rename_and_the_folder_after(tmp_path: Path, monkeypatch) -> None:
    steps = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)

        def step(*arguments, name=name, original=original):
            kind = "folder" if name == "fsync" and os.path.isdir(f"/proc/self/fd/{arguments[0]}") else "file"
            steps.append((name, kind))
            return original(*arguments)

        monkeypatch.setattr(os, name, step)
    atomic.write_bytes(tmp_path / "file", b"data")
    assert steps == [("fsync", "file"), ("replace", "file"), ("fsync", "folder")]


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "the disk is full"), (errno.EACCES, "permission denied"), (errno.EIO, "input/output error")],
)
def test_a_failure_names_the_file_and_the_cause_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch, failing: str, code: int, words: str
) -> None:
    path = tmp_path / "file"
    atomic.write_bytes(path, b"old")

    def fail(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(UserError) as caught:
            atomic.write_bytes(path, b"new")
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_ctrl_c_leaves_no_temporary_file(tmp_path: Path, monkeypatch) -> None:
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic.write_bytes(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == []


def test_places_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="does not exist"):
        atomic.write_bytes(tmp_path / "missing" / "x", b"")
    with pytest.raises(UserError, match="is a file, not a folder"):
        atomic.write_bytes(tmp_path / "file" / "x", b"")
    with pytest.raises(UserError, match="a folder has that name"):
        atomic.write_bytes(tmp_path / "folder", b"")
    with pytest.raises(UserError, match="a file has that name"):
        atomic.make_folder(tmp_path / "file")
    with pytest.raises(UserError, match="is a file, not a folder"):
        atomic.make_folder(tmp_path / "file" / "x")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_colleagues_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        atomic.write_bytes(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_only_temporary_files_are_removed(tmp_path: Path) -> None:
    for name in (".a.json.0123abcd.tmp", "a.json", ".hidden", "a.tmp"):
        (tmp_path / name).touch()
    atomic.remove_temporary_files(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".hidden", "a.json", "a.tmp"]
