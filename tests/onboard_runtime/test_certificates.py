"""A link that leaves the computer: TLS, nobody without a certificate of the same authority, and to each their own."""

import contextlib
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firsthand_onboard.jobs import policy_digest
from firsthand_onboard.link import ClientEnd
from firsthand_onboard.messages import Message
from firsthand_onboard.network import LinkError, Security, access_rules, read_allowed, split_address
from firsthand_onboard.spec import SpecError
from firsthand_onboard.stop_way import MAX_HANDSHAKES, NEXT_PORT, TLS_TRIES, StopUnreachable, _send_over_tls
from firsthand_onboard.toy import toy_spec

from .processes import PATIENCE, Process, free_port, wait_for

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_certificates.sh"
MACHINE = """
import numpy as np
from firsthand_onboard.toy import Toy
class Standing:
    spec = Toy().spec
    stopping = {"lag_s": 0.3}
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
    command = (
        *("-m", "firsthand_onboard", "serve", "--machine", f"{machine}:Standing", "--watchdog", "5"),
        *("--listen", address, "--certificates", str(ours), "--priority", "0", "--lease", "30"),
    )
    robot = Process(*command)
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
        acknowledge = [sys.executable, "-m", "firsthand_onboard", "acknowledge", address, "--certificates", str(ours)]
        done = subprocess.run([*acknowledge, "--fault", "1"], capture_output=True, text=True, timeout=60, check=False)
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
        assert tries_at_a_door_that_closes(operator) == TLS_TRIES  # others' connections may push a stop out
        # Unsigned policies are refused: the signer's key lies beside the certificates.
        unsigned = {"spec": toy_spec().digest(), "digest": policy_digest({})}
        assert ask(address, trainer, "arm", operator=False).kind == "refused"  # the fault is still there
        robot.end()
        # The trainer's certificate is stolen.
        stolen = copied(trainer, tmp_path / "stolen")
        subprocess.run(["sh", str(SCRIPT), str(ours), "--revoke", "trainer"], check=True, capture_output=True)
        robot = Process(*command)
        trainer = Security.in_folder(ours, "trainer")
        assert wait_for(lambda: answered(address, trainer), "an answer to the new certificate")["state"] == "idle"
        with pytest.raises(LinkError, match="does not answer"):
            ask(address, stolen, "status", operator=False, patience_s=0.7)
        with pytest.raises(StopUnreachable):
            _send_over_tls("127.0.0.1", own, stolen, PATIENCE)
        client = ClientEnd(address, trainer, run="ours", operator=False)
        try:
            client.robot = client.ask("hello").robot
            assert client.ask("arm").kind == "reply"
            assert "the policy is not signed" in client.ask("policy", unsigned).body["why"]
        finally:
            client.close()
        assert _send_over_tls("127.0.0.1", own, operator, PATIENCE)["state"] == "fault"
    finally:
        robot.end()


FILE = Path(__file__)


def tries_at_a_door_that_closes(security: Security) -> int:
    """How often a stop knocks where every connection is closed at once."""
    with socket.create_server(("127.0.0.1", 0)) as door, ThreadPoolExecutor(1) as thread:
        sent = thread.submit(_send_over_tls, "127.0.0.1", door.getsockname()[1], security, PATIENCE)
        door.settimeout(0.05)
        count = 0
        while not sent.done():
            with contextlib.suppress(TimeoutError):
                door.accept()[0].close()
                count += 1
        with pytest.raises(StopUnreachable):
            sent.result()
    return count


@pytest.mark.parametrize(
    ("error", "tries"), [(ConnectionResetError, TLS_TRIES), (BrokenPipeError, TLS_TRIES), (ConnectionRefusedError, 1)]
)
def test_a_stop_that_was_cut_off_is_sent_again(error, tries, monkeypatch):
    made = []

    def connect(*where: object, **options: object) -> None:
        made.append(where)
        raise error

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(StopUnreachable):
        _send_over_tls("127.0.0.1", 1, Security(FILE, FILE, FILE), PATIENCE)
    assert len(made) == tries


def copied(security: Security, folder: Path) -> Security:
    """The same certificate and key, in another folder."""
    folder.mkdir()
    for path in (security.authority, security.certificate, security.key):
        shutil.copy(path, folder)
    return Security.in_folder(folder, security.key.stem)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("trainer robot", "has the line 'trainer robot'"),
        ("boss trainer", "has the line 'boss trainer'"),
        ("trainer trainer.2 operator", "has the line"),
        ("trainer träiner", "cannot be read"),
    ],
)
def test_a_wrong_file_of_allowed_certificates_is_one_sentence(text, why, tmp_path):
    (tmp_path / "allowed").write_text(text)
    with pytest.raises(SpecError, match=why):
        Security.in_folder(tmp_path, "robot")


def test_a_role_without_a_line_may_do_nothing(tmp_path):
    (tmp_path / "allowed").write_text("operator operator operator.2\n")
    assert read_allowed(tmp_path / "allowed") == {"trainer": (), "operator": ("operator", "operator.2")}
    assert read_allowed(tmp_path / "nowhere") == {}
    rules = access_rules((), ("operator", "operator.2"))
    assert [subject["id"] for subject in rules["subjects"]] == ["operator"]
    assert len(rules["policies"]) == 1


def answered(address: str, security: Security) -> dict | None:
    try:
        return dict(ask(address, security, "status", operator=False, patience_s=2.0).body)
    except LinkError:
        return None


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"ca\.pem"):
        Security.in_folder(tmp_path, "robot")
