"""A link that leaves the computer: TLS, nobody without a certificate of the same authority, and to each their own."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from firsthand_onboard.link import ClientEnd
from firsthand_onboard.messages import Message
from firsthand_onboard.network import LinkError, Security, split_address
from firsthand_onboard.spec import SpecError
from firsthand_onboard.stop_way import MAX_HANDSHAKES, NEXT_PORT, StopUnreachable, _send_over_tls

from .processes import PATIENCE, Process, free_port, wait_for

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_certificates.sh"
MACHINE = """
import numpy as np
from firsthand_onboard.toy import Toy
class Standing:
    spec = Toy().spec
    command_kind = "rate"
    def read(self): return np.zeros(4)
    def write(self, command): pass
    def neutral(self): pass
"""


def make(folder: Path) -> Path:
    subprocess.run(["sh", str(SCRIPT), str(folder), "127.0.0.1", "localhost"], check=True, capture_output=True)
    return folder


def ask(
    address: str, security: Security | None, kind: str, *, operator: bool, patience_s: float = PATIENCE, **body: object
) -> Message:
    """One question in a session of its own; `LinkError` where it does not get through."""
    client = ClientEnd(address, security, run="stranger", operator=operator)
    try:
        client.robot = client.ask("hello", patience_s=patience_s, tries=1).robot
        return client.ask(kind, body, patience_s=patience_s, tries=1)
    finally:
        client.close()


def test_certificates_decide_who_gets_in_and_who_may_acknowledge(tmp_path):
    ours, theirs = make(tmp_path / "ours"), make(tmp_path / "theirs")
    assert (ours / "robot.key").stat().st_mode & 0o077 == 0
    machine, address = tmp_path / "standing_machine.py", f"tls/127.0.0.1:{free_port()}"
    machine.write_text(MACHINE)
    robot = Process(
        *("-m", "firsthand_onboard", "serve", "--machine", f"{machine}:Standing", "--watchdog", "5"),
        *("--listen", address, "--certificates", str(ours), "--priority", "0", "--lease", "30"),
    )
    trainer, operator = (Security.in_folder(ours, who) for who in ("trainer", "operator"))
    try:
        greeted = wait_for(lambda: answered(address, trainer), "an answer over TLS")
        assert greeted["state"] == "idle"
        accepted = greeted["messages"]["accepted"]
        stranger = Security(ours / "ca.pem", theirs / "trainer.pem", theirs / "trainer.key")
        for who, where in ((stranger, address), (None, address.replace("tls", "tcp"))):
            with pytest.raises(LinkError):
                ask(where, who, "status", operator=False, patience_s=0.7)
        assert ask(address, trainer, "stop", operator=False).body["fault"] == "the operator stopped it"
        # The trainer's certificate does not reach the operators' key, and the operator's not the trainers'.
        for who, key in ((trainer, True), (operator, False)):
            with pytest.raises(LinkError, match="does not answer"):
                ask(address, who, "status", operator=key, patience_s=0.7)
        assert "only the operator" in ask(address, trainer, "acknowledge", operator=False, number=1).body["why"]
        refused = ask(address, operator, "arm", operator=True).body
        assert "for trainers" in refused["why"]
        assert refused["messages"]["accepted"] == accepted + 6  # hello and question of every session that got in
        command = [sys.executable, "-m", "firsthand_onboard", "acknowledge", address, "--certificates", str(ours)]
        command += ["--fault", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert "the machine is idle" in done.stdout, done.stderr
        status = ask(address, trainer, "status", operator=False).body
        assert status["state"] == "idle"
        # Stops have a port of their own, which also takes certificates only.
        own = split_address(address)[1] + NEXT_PORT
        for who in (stranger, Security.in_folder(ours, "robot")):
            with pytest.raises(StopUnreachable):
                _send_over_tls("127.0.0.1", own, who, PATIENCE)
        silent = [socket.create_connection(("127.0.0.1", own)) for _ in range(2 * MAX_HANDSHAKES)]  # and say nothing
        assert ask(address, trainer, "status", operator=False).body["state"] == "idle"
        assert _send_over_tls("127.0.0.1", own, operator, PATIENCE)["fault"] == "the operator stopped it"
        assert _send_over_tls("127.0.0.1", own, trainer, PATIENCE)["state"] == "fault"
        for connection in silent:
            connection.close()
    finally:
        robot.end()


def answered(address: str, security: Security) -> dict | None:
    try:
        return dict(ask(address, security, "status", operator=False, patience_s=2.0).body)
    except LinkError:
        return None


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"ca\.pem"):
        Security.in_folder(tmp_path, "robot")
