"""A link that leaves the computer: TLS, and nobody without a certificate of the same authority."""

import subprocess
from pathlib import Path

import pytest

from firsthand_onboard.link import ClientEnd, LinkError, RobotEnd, Security
from firsthand_onboard.spec import SpecError

from .processes import free_port, wait_for

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_certificates.sh"


def make(folder: Path) -> Path:
    subprocess.run(["sh", str(SCRIPT), str(folder), "127.0.0.1", "localhost"], check=True, capture_output=True)
    return folder


def greet(address: str, security: Security | None) -> None:
    client = ClientEnd(address, security, run="stranger")
    client.ask("hello", patience_s=1.0, tries=1)


def test_only_certificates_of_the_same_authority_get_in(tmp_path):
    ours, theirs = make(tmp_path / "ours"), make(tmp_path / "theirs")
    assert (ours / "robot.key").stat().st_mode & 0o077 == 0
    address = f"tls/127.0.0.1:{free_port()}"
    robot = RobotEnd(address, Security.in_folder(ours, "robot"))
    try:
        trainer = ClientEnd(address, Security.in_folder(ours, "trainer"), run="trainer")
        trainer.send("hello")
        message = wait_for(robot.receive, "hello over TLS")
        robot.send("reply", message, {"state": "idle"})
        answer = wait_for(lambda: trainer.next(0.1), "the answer")
        assert answer.body == {"state": "idle"}
        trainer.close()
        accepted = robot.receiver.counts["accepted"]
        stranger = Security(ours / "ca.pem", theirs / "trainer.pem", theirs / "trainer.key")
        with pytest.raises(LinkError):
            greet(address, stranger)
        with pytest.raises(LinkError):
            greet(address.replace("tls", "tcp"), None)
        assert robot.receive() is None
        assert robot.receiver.counts["accepted"] == accepted
    finally:
        robot.close()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"ca\.pem"):
        Security.in_folder(tmp_path, "robot")
