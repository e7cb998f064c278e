"""Machines have a name of their own, whatever their address."""

import os
from pathlib import Path

import pytest

from firsthand_onboard.identity import MachineIdentity, answer_of, key_file, machine_identity

TAG, OTHER, QUESTION = "0" * 32, "1" * 32, "2" * 32


def test_a_secret_is_given_once_and_proves_who_it_is(tmp_path: Path) -> None:
    """Whoever hears what a trainer calls itself cannot have its secret given to him."""
    machine = MachineIdentity(tmp_path / "a.key")
    secret = machine.meet(TAG)
    assert secret is not None
    assert machine.meet(TAG) is None
    assert machine.meet(OTHER) not in (None, secret)
    again, other = MachineIdentity(tmp_path / "a.key"), MachineIdentity(tmp_path / "b.key")
    assert again.meet(TAG) is None
    assert again.prove(TAG, QUESTION) == answer_of(secret, QUESTION) != other.prove(TAG, QUESTION)
    assert secret not in "".join(file.read_text() for file in tmp_path.iterdir())
    for wrong in ("", "x" * 32, "0" * 31, "0" * 33, TAG + "\n"):
        assert machine.meet(wrong) is machine.prove(wrong, QUESTION) is machine.prove(TAG, wrong) is None


def test_where_it_cannot_be_kept_whom_it_has_met_it_meets_nobody(tmp_path: Path) -> None:
    machine = MachineIdentity(tmp_path / "a.key")
    (tmp_path / "a.key.met").symlink_to(tmp_path / "elsewhere")
    assert machine.meet(TAG) is None
    assert not (tmp_path / "elsewhere").exists()


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
