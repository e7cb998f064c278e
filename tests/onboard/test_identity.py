"""Machines have a name of their own, whatever their address."""

import os
from pathlib import Path

import pytest

from firsthand_onboard.identity import key_file, machine_identity


def test_a_machine_keeps_its_name_and_another_has_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    first = key_file("arm.py:Arm", {"port": "1"})
    name = machine_identity(first)
    assert machine_identity(first) == name
    assert (first.stat().st_mode & 0o777, first.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert name not in first.read_text()
    assert key_file(f"{tmp_path}/arm.py:Arm", {"port": "1"}) == first
    others = [("arm.py:Arm", {"port": "2"}), ("arm.py:Leg", {"port": "1"}), ("arm:Arm", {"port": "1"})]
    assert len({name, *(machine_identity(key_file(*other)) for other in others)}) == 4


@pytest.mark.parametrize("content", [b"", b"\xff", b"0" * 63, b"0" * 65, b"0" * 100_000])
def test_a_damaged_key_is_made_again(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    path.write_bytes(content)
    name = machine_identity(path)
    assert machine_identity(path) == name


def test_a_key_that_cannot_be_kept_or_read_gives_a_name_for_this_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.key")
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a.key", tmp_path / "pipe.key"):
        assert len(machine_identity(path)) == 32
    assert machine_identity(tmp_path / "file" / "a.key") != machine_identity(tmp_path / "file" / "a.key")
