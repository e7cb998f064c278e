"""The onboard program, its watchdog and a toy machine as real processes; faults are real signals.

How fast things happen is measured by `make soak`, which runs the same scenes many times; here they must happen at all.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from firsthand.cli.inspect import check_goes_on
from firsthand.errors import UserError
from firsthand.robots.registry import make_task
from firsthand.robots.remote import RemoteRobot, disconnect
from firsthand_onboard.cli import _check_writable, main
from firsthand_onboard.faults import CRASHED
from firsthand_onboard.link import ClientEnd
from firsthand_onboard.network import LinkError, check_address
from firsthand_onboard.spec import SpecError
from firsthand_onboard.watchdog import check_timeout, timeout_for

from .processes import (
    FAST,
    GOALS,
    SPEC,
    Process,
    Rig,
    begin,
    connect,
    finished,
    free_port,
    random_policy,
    rig,
    send_policy,
    silent,
    stop,
    wait_for,
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory):
    """A rig that tests of peaceful things share."""
    options = ("--speed", "4", "--lease", "2", "--between", "home")
    with rig(tmp_path_factory.mktemp("rig"), *options, **FAST) as made:
        yield made


def test_an_episode_comes_back_as_it_was_applied(running):
    client = running.client()
    begin(client, SPEC, "peaceful", GOALS[:2])
    status = finished(client)
    assert status["job"] == {"name": "peaceful", "kind": "visit", "ended": "done", "count": 2}
    wait_for(lambda: client.next(0.1) is None and len(client.others) == 2, "both trajectories")
    first, second = (message.arrays for message in client.others)
    assert first["valid"].all()
    np.testing.assert_array_equal(first["measured"][-1], second["measured"][0])  # it starts where the last one ended
    applied = {tuple(np.float32(c) for c in line["command"]) for line in running.lines()}
    # The machine has a clock of its own and may miss commands or see one twice; it saw nothing but these.
    sent = {tuple(command) for message in (first, second) for command in message["commands"]}
    assert len(applied & sent) > 10
    assert applied <= sent | {(0.0, 0.0)}
    client.ask("release")
    client.close()


def test_the_operators_stop_latches_in_every_state_and_may_be_repeated(running):
    client, other = running.client(), running.client("somebody", operator=True)

    def latched() -> None:
        status = wait_for(lambda: (s := other.ask("status").body)["state"] == "fault" and s, "the latch")
        assert status["fault"] == "the operator stopped it"
        assert "operator" in client.ask("arm").body["why"]
        assert "only the operator" in client.acknowledge(status["fault_number"]).body["why"]
        # Whoever acknowledges must know of the newest stop.
        assert stop(other).body["fault_number"] == status["fault_number"] + 1
        assert other.acknowledge(status["fault_number"]).kind == "refused"
        assert other.acknowledge(status["fault_number"] + 1).body["state"] == "idle"

    for _ in range(2):
        assert stop(other).body["state"] == "fault"
    latched()
    assert client.ask("arm").body["state"] == "armed"
    assert stop(other).body["state"] == "fault"
    latched()
    begin(client, SPEC, "to be stopped", GOALS)
    wait_for(running.moving, "motion")
    for _ in range(2):
        stop(other)
    assert finished(client)["job"]["ended"] == "stopped"
    silent(running)
    latched()
    assert "for trainers" in other.ask("arm").body["why"]
    client.close()
    other.close()


def test_the_command_acknowledges_only_what_somebody_has_seen(running, monkeypatch, capsys):
    other = running.client("somebody", operator=True)

    def acknowledge(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["acknowledge", running.address, *words])
        said = capsys.readouterr()
        return int(str(ended.value.code)), said.out + said.err

    def answer(text: str) -> None:
        monkeypatch.setattr("builtins.input", lambda _: text)

    seen = int(stop(other).body["fault_number"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    code, said = acknowledge()
    assert (code, f"--fault {seen}" in said, "the operator stopped it" in said) == (2, True, True)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    answer("")
    code, said = acknowledge()
    assert (code, f"fault {seen}: the operator stopped it" in said, "not acknowledged" in said) == (1, True, True)
    stop(other)
    code, said = acknowledge("--fault", str(seen))  # a stop has come since
    assert (code, f"number {seen + 1}, not {seen}" in said) == (2, True)
    assert other.ask("status").body["state"] == "fault"
    answer("y")
    assert acknowledge()[0] == 0
    assert other.ask("status").body["state"] == "idle"
    stop(other)
    assert acknowledge("--fault", str(seen + 2))[0] == 0
    assert "there is no fault" in acknowledge()[1]
    other.close()


def home(client: ClientEnd, name: str) -> dict:
    """Go home from the end of a short trajectory; what was answered."""
    begin(client, SPEC, f"{name} before", GOALS[:1])
    assert finished(client)["job"]["ended"] == "done"
    answer = client.ask("job", {"name": name, "kind": "home"})
    assert answer.kind == "reply", answer.body
    return dict(answer.body)


def test_the_machine_goes_home_under_the_gate_and_can_be_stopped_on_its_way(running):
    client, other = running.client(), running.client("somebody", operator=True)
    client.ask("arm")
    client.keep_lease(0.2)
    home(client, "home")
    job = finished(client)["job"]
    assert (job["ended"], job["kind"]) == ("done", "home")
    assert job["away"] < 0.03
    wait_for(lambda: client.next(0.1) is None and client.others[-1:], "the trajectory")
    applied = client.others[-1].arrays["commands"]
    assert 0.02 < np.abs(applied).max() <= 0.3  # the toy's range is ±1, and homing may use 0.3 of it
    home(client, "to be stopped")
    wait_for(running.moving, "motion")
    stop(other)
    assert finished(client)["job"]["ended"] == "stopped"
    silent(running)
    assert client.ask("job", {"name": "without a lease", "kind": "home"}).kind == "refused"
    assert running.acknowledge() == "idle"
    client.close()
    other.close()


def test_inspect_does_not_push_a_machine_that_would_pause_in_between(running):
    task = dataclasses.replace(make_task("excavator"), spec=SPEC, home=(-0.5, 1.0))
    with pytest.raises(UserError, match="real time"):
        check_goes_on(RemoteRobot(running.address, task))
    disconnect(running.address)


def test_a_signal_stops_the_machine_until_it_is_acknowledged(running):
    client = running.client()
    begin(client, SPEC, "signalled", GOALS)
    wait_for(running.moving, "motion")
    running.onboard.signal(signal.SIGUSR1)
    status = wait_for(lambda: (s := client.ask("status").body)["state"] == "fault" and s, "the latch")
    assert status["fault"] == "the operator stopped it"
    silent(running)
    assert running.acknowledge() == "idle"
    client.close()


def test_a_trainers_own_stop_does_not_latch(running):
    client = running.client()
    client.ask("arm")
    assert stop(client).body["state"] == "idle"
    begin(client, SPEC, "to be stopped by its trainer", GOALS)
    wait_for(running.moving, "motion")
    stop(client)
    assert finished(client)["job"]["ended"] == "stopped"
    assert client.ask("arm").body["state"] == "armed"
    client.ask("release")
    client.close()


def test_what_is_not_allowed_is_refused_and_changes_nothing(running):
    client, other = running.client(), running.client("other")
    goals = {"goals": GOALS[:1]}
    assert "idle" in client.ask("job", {"name": "x", "kind": "visit", "policy": ""}, goals).body["why"]
    client.ask("arm")
    client.keep_lease(0.2)
    assert "another trainer" in other.ask("arm").body["why"]
    assert "not yours" in other.ask("job", {"name": "x", "kind": "visit", "policy": ""}, goals).body["why"]
    assert "holder" in other.ask("policy", {"spec": SPEC.digest()}, random_policy(SPEC)).body["why"]
    for body, arrays, word in (
        ({"name": "x", "kind": "visit", "policy": "unknown"}, goals, "send it first"),
        ({"name": "x", "kind": "dance"}, goals, "unknown"),
        ({"name": "", "kind": "visit"}, goals, "name"),
        ({"name": "x", "kind": "visit", "authority": 2.0}, goals, "authority"),
        ({"name": "x", "kind": "visit", "authority": True}, goals, "authority"),
        ({"name": "x", "kind": "visit"}, {}, "goals"),
        ({"name": "x", "kind": "visit"}, {"goals": np.full((1, 2), np.nan)}, "goals"),
        ({"name": "x", "kind": "visit"}, {"goals": np.full((1, 2), 1e300)}, "goals"),
        ({"name": "x", "kind": "home"}, goals, "goals"),
        ({"name": "x", "kind": "visit"}, {"goals": np.zeros((1, 3))}, "goals"),
        ({"name": "x", "kind": "play"}, {"commands": np.zeros((0, 2))}, "steps"),
        ({"name": "x", "kind": "play"}, {"commands": np.zeros((5, 2)), "extra": np.zeros(1)}, "extra"),
    ):
        answer = client.ask("job", body, arrays)
        assert (answer.kind, answer.body["state"]) == ("refused", "armed")
        assert word in answer.body["why"]
    weights = random_policy(SPEC)
    for spec, digest, arrays, word in (
        ("other", "", weights, "specification"),
        (SPEC.digest(), "wrong", weights, "digest"),
    ):
        assert word in client.ask("policy", {"spec": spec, "digest": digest}, arrays).body["why"]
    bad = {**weights, "policy.0.bias": np.full(32, np.nan, np.float32)}
    with pytest.raises(AssertionError, match="not finite"):
        send_policy(client, SPEC, bad)
    assert "no fault" in running.acknowledge()
    assert client.ask("fetch", {"job": "nobody's", "index": 0}).kind == "refused"
    client.ask("release")
    client.close()
    other.close()


def operator(made: Rig, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "firsthand_onboard", *command, made.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fault_latches_over_a_restart_until_it_is_acknowledged(tmp_path):
    latch = tmp_path / "fault.json"
    with rig(tmp_path, "--latch", str(latch), "--speed", "4", limits={"tracking_error": 0.05}, **FAST) as made:
        client = made.client()
        begin(client, SPEC, "far off", GOALS)
        status = finished(client)
        assert status["state"] == "fault"
        assert "tracking error" in status["fault"]
        assert client.ask("arm").kind == "refused"
        client.close()
        made.onboard.end()
        made.start()
        client = made.client()
        assert client.ask("arm").kind == "refused"
        silent(made)
        assert "tracking error" in operator(made, "status")
        operator(made, "acknowledge", "--fault", "1")
        assert not latch.exists()
        assert client.ask("arm").kind == "reply"
        client.close()


def test_after_a_kill_in_motion_nobody_arms_before_the_operator_has_looked(tmp_path):
    with rig(tmp_path, "--latch", str(tmp_path / "fault.json"), "--speed", "4", **FAST) as made:
        client = made.client()
        begin(client, SPEC, "killed", GOALS)
        wait_for(made.moving, "motion")
        made.onboard.signal(signal.SIGKILL)
        client.close()
        made.onboard.end()
        made.start()
        client = made.client()
        assert client.ask("status").body["fault"] == CRASHED
        assert client.ask("arm").kind == "refused"
        silent(made)
        assert made.acknowledge() == "idle"
        begin(client, SPEC, "ends", GOALS[:1])
        assert finished(client)["job"]["ended"] == "done"
        client.close()
        made.onboard.signal(signal.SIGKILL)  # it stands: nothing to acknowledge
        made.onboard.end()
        made.start()
        client = made.client()
        assert client.ask("arm").kind == "reply"
        client.close()


TRAINER = """
import ctypes, signal, sys, threading
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
import numpy as np
from types import SimpleNamespace
from firsthand.robots.remote import RemoteRobot
from firsthand_onboard.toy import toy_spec
robot = RemoteRobot(sys.argv[1], SimpleNamespace(spec=toy_spec()))
robot.measured()
commands = {"commands": np.tile(np.float32([0.3, -0.3]), (2000, 1))}
threading.Thread(target=lambda: robot.execute("play", None, commands, 1), daemon=True).start()
print("ready", flush=True)
while True:
    ctypes.CDLL(None).sleep(600)  # the main thread computes, and hears no signal
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_trainer_that_is_ended_stops_its_machine_first(number, running):
    trainer = Process("-c", TRAINER, running.address)
    wait_for(running.moving, "motion")
    trainer.signal(number)
    assert trainer.popen.wait(30) == 128 + number
    client = running.client()
    status = client.ask("status").body
    assert (status["state"], status["taken"], status["job"]["ended"]) == ("idle", False, "stopped")
    assert not running.moving()
    client.close()
    trainer.end()


REAL = """
from firsthand_onboard.toy import toy_spec


class Machine:
    spec = toy_spec()
    {says}

    def read(self):
        return [0.0] * 4

    neutral = write = lambda *_: None
"""


@pytest.mark.parametrize(
    ("says", "speed"), [("", "10"), ("", "0.5"), ("simulated = 'no'", "1.01"), ("reset = lambda *_: None", "10")]
)
def test_only_a_simulation_runs_at_another_speed(says, speed, tmp_path, capsys):
    file = tmp_path / f"real_machine_{tmp_path.name.replace('-', '_')}.py"
    file.write_text(REAL.format(says=says))
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--priority", "0", "--machine", f"{file}:Machine", "--speed", speed])
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"speed is {speed}, but the machine" in said
    assert "a real machine runs in real time" in said


@pytest.mark.parametrize(
    ("says", "option", "why"),
    [
        ("", "--wide-limits", "--wide-limits switches the gate's limits off, but the machine"),
        ("command_kind = 'rate'", "--wide-limits", "does not say that it is a simulation"),
        ("", "", "it is not declared how shoulder.position stops"),
        ("stopping = {'speed': 1.0, 'dead_time_s': 0.1}", "", "it is not declared how shoulder.position stops"),
        ("stopping = {'deceleration': None}", "", "it is not declared how shoulder.position stops"),
        ("stopping = {'deceleration': [1.0, None]}", "", "it is not declared how elbow.position stops"),
        ("command_kind = 'rate'", "", "it is not declared how shoulder.position stops"),
        ("", "--command-kind position", "it is not declared how shoulder.position stops"),
        ("", "--stop-lag nan", "stop-lag is nan s, but must lie between 0 and 60"),
        ("command_kind, stopping = 'acceleration', {'deceleration': 1.0}", "", "what does stop shoulder.position"),
        ("command_kind = 'acceleration'", "", "what does stop shoulder.position: give brake"),
        ("simulated, command_kind = True, 'acceleration'", "", "what does stop shoulder.position: give brake"),
        ("", "--command-kind acceleration", "what does stop shoulder.position: give brake"),
        ("directions = ((0.9, 1), (1, 1))", "--stop-lag 1", "directions is ((0.9, 1), (1, 1)), but must have a joint"),
        ("stopping = len", "", "stopping is <built-in function len>, but must be a dict"),
        ("simulated = True", "", "As it is a simulation, `--wide-limits` serves it"),
        ("stopping = {'lag_s': 0.1}", "--stop-lag 2", "--stop-lag is 2, but the machine"),
        ("command_kind = 'torque'", "", "command_kind is 'torque', but must be one of position, rate, acceleration"),
    ],
)
def test_a_machine_of_which_nobody_knows_how_it_stops_is_not_served(says, option, why, tmp_path, capsys):
    file = tmp_path / f"undeclared_{tmp_path.name.replace('-', '_')}.py"
    file.write_text(REAL.format(says=says))
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--priority", "0", "--machine", f"{file}:Machine", *option.split()])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err.strip().splitlines()[-1]


SCENES = {
    "loop killed": ("onboard", signal.SIGKILL),
    "loop frozen": ("onboard", signal.SIGSTOP),
    "watchdog killed": ("watchdog", signal.SIGKILL),
    "watchdog frozen": ("watchdog", signal.SIGSTOP),
}


@pytest.fixture(scope="module")
def killable(tmp_path_factory: pytest.TempPathFactory):
    """A rig whose machine has no timeout of its own. It goes on after every scene, which is part of what is shown."""
    with rig(tmp_path_factory.mktemp("rig"), "--speed", "4", simulate=("--speed", "4", "--timeout", "1000")) as made:
        yield made


@pytest.mark.parametrize("scene", SCENES)
def test_whichever_process_dies_or_hangs_the_machine_ends_in_neutral(killable, scene):
    who, number = SCENES[scene]
    made, client = killable, killable.client()
    begin(client, SPEC, scene, GOALS)
    wait_for(made.moving, "motion")
    os.kill(made.onboard.pid if who == "onboard" else made.onboards_watchdog(), number)
    wait_for(lambda: not made.moving(), "neutral")
    if scene == "loop frozen":
        made.onboard.signal(signal.SIGCONT)
    if scene == "loop killed":
        made.onboard.popen.wait()
        made.start()
        client.close()
        client = made.client()
        assert client.ask("status").body["state"] == "idle"
    else:
        wait_for(lambda: client.ask("status").body["state"] == "fault", "the fault")
        silent(made)
        assert made.acknowledge() == "idle"
    begin(client, SPEC, f"after {scene}", GOALS)
    wait_for(made.moving, "motion after the fault was acknowledged")
    stop(client)
    assert finished(client)["job"]["ended"] == "stopped"
    client.close()


def test_when_the_whole_computer_dies_the_machine_stops_by_its_own_timeout(tmp_path):
    with rig(tmp_path, simulate=("--timeout", "0.5")) as made:
        client = made.client()
        begin(client, SPEC, "fault", GOALS)
        wait_for(made.moving, "motion")
        os.kill(made.watchdog_pid, signal.SIGSTOP)
        made.onboard.signal(signal.SIGSTOP)
        wait_for(lambda: not made.moving(), "neutral")
        assert any(line["event"] == "timeout" for line in made.lines())
        os.kill(made.watchdog_pid, signal.SIGKILL)
        made.onboard.signal(signal.SIGKILL)
        client.close()


def test_a_machine_that_disappears_is_a_fault(tmp_path):
    with rig(tmp_path, "--machine-option", "patience_s=0.5") as made:
        client = made.client()
        begin(client, SPEC, "gone", GOALS)
        wait_for(made.moving, "motion")
        made.machine.signal(signal.SIGKILL)
        status = finished(client)
        assert status["state"] == "fault"
        assert "does not answer" in status["fault"]
        assert "came back" in made.acknowledge()
        client.close()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--machine", "nothing"), "module:Class"),
        (("--machine", "firsthand_onboard.toy:Nothing"), "cannot be loaded"),
        (("--machine", "firsthand_onboard.toy:Toy", "--listen", "tcp/0.0.0.0:7447"), "leaves this computer"),
        (("--machine", "firsthand_onboard.toy:Toy", "--listen", "tls/0.0.0.0:7447"), "certificates"),
        (("--machine", "firsthand_onboard.toy:Toy", "--lease", "0"), "lease"),
        (("--machine", "firsthand_onboard.toy:Toy", "--speed", "0"), "speed"),
        (("--machine", "firsthand_onboard.toy:Toy", "--watchdog", "nan"), "watchdog is nan"),
        (("--machine", "firsthand_onboard.toy:Toy"), "lacks read, write, neutral"),
        (("--machine", "firsthand_onboard.toy:Toy", "--latch", "/"), "is a folder"),
        (("--machine", "firsthand_onboard.toy:Toy", "--latch", "/dev/null/fault.json"), "cannot be written"),
    ],
)
def test_mistakes_get_one_sentence(arguments, word, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--priority", "0", *arguments])
    assert ended.value.code == 2
    assert word in capsys.readouterr().err


def test_a_mistake_leaves_no_traceback_on_the_terminal():
    command = [sys.executable, "-m", "firsthand_onboard", "serve", "--machine", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


BROKEN = "class Raises:\n    def __init__(self):\n        raise OSError('no such port')\n"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("look", "--machine", "{file}:Raises"), "no such port"),
        (("look", "--machine", "firsthand_onboard.toy:Toy", "--seconds", "nan"), "seconds is nan"),
        (("look", "--machine", "firsthand_onboard.toy:Toy"), "cannot be read"),
        (("simulate", "--speed", "-1"), "speed is -1"),
        (("simulate", "--log", "/dev/null/log"), "cannot be written"),
    ],
)
def test_mistakes_of_look_and_simulate_get_one_sentence(arguments, word, tmp_path, capsys):
    file = tmp_path / "broken_machine_of_a_test.py"
    file.write_text(BROKEN)
    with pytest.raises(SystemExit) as ended:
        main([argument.format(file=file) for argument in arguments])
    assert ended.value.code == 2
    assert word in capsys.readouterr().err


LOOKED_AT = """
from firsthand_onboard.toy import toy_spec

class Machine:
    spec = toy_spec()

    def read(self):
        return [0.0] * {size}

    neutral = write = lambda *_: None
"""


@pytest.mark.parametrize(("size", "code"), [(3, 2), (4, 0), (5, 2)])
def test_look_does_not_hide_values_that_nobody_named(size, code, tmp_path, capsys):
    file = tmp_path / f"machine_with_{size}_values.py"
    file.write_text(LOOKED_AT.format(size=size))
    with pytest.raises(SystemExit) as ended:
        main(["look", "--machine", f"{file}:Machine", "--seconds", "0.1"])
    assert ended.value.code == code
    assert code == 0 or f"measures {size} values, but the specification names 4" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["fault.json", "fault.new", "fault"])
def test_trying_whether_a_fault_can_be_written_leaves_the_one_that_is_there(name, tmp_path):
    latch = tmp_path / name
    latch.write_text("a fault")
    _check_writable(latch, "latch")
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert latch.read_text() == "a fault"


def test_the_watchdog_waits_longer_than_a_period_and_not_much_longer():
    for period_s, timeout_s in ((0.001, 0.02), (0.02, 0.04), (0.04, 0.08), (0.05, 0.08), (0.1, 0.15), (1.0, 1.5)):
        assert timeout_for(period_s, lock_step=False) == pytest.approx(timeout_s)


@pytest.mark.parametrize("timeout_s", [float("nan"), float("inf"), -1.0, 0.0, 60.0])
def test_a_watchdog_that_would_trip_at_once_or_too_late_is_refused(timeout_s):
    with pytest.raises(SpecError, match="watchdog is"):
        check_timeout(timeout_s)


def test_addresses():
    for good in ("tcp/127.0.0.1:1", "tcp/localhost:7447", "tcp/[::1]:7447"):
        check_address(good, None)
    for bad in ("udp/127.0.0.1:1", "tcp/127.0.0.1", "tcp/192.168.0.2:7447", "tcp/robot:7447", "tls/127.0.0.1:1", ""):
        with pytest.raises(SpecError):
            check_address(bad, None)


def test_nobody_there():
    with pytest.raises(LinkError):
        ClientEnd(f"tcp/127.0.0.1:{free_port()}")


LEANING = """
import numpy as np
from firsthand_onboard.toy import Toy


class Machine(Toy):
    simulated = True

    def __init__(self):
        super().__init__()
        self.reset(np.asarray([2.2, 0.5]))

    def step(self, command):
        before = self.position.copy()
        super().step(command)
        self.position = before + self.spec.period_s * self.velocity  # without the toy's stops

    read = Toy.measure
    write = step

    def neutral(self):
        pass
"""


def test_an_operator_leads_a_machine_back_that_stands_outside(tmp_path):
    file = tmp_path / f"leaning_{tmp_path.name.replace('-', '_')}.py"
    file.write_text(LEANING)
    limits, address = tmp_path / "limits.json", f"tcp/127.0.0.1:{free_port()}"
    limits.write_text('{"command_age_s": null}')
    serve = Process(
        *("-m", "firsthand_onboard", "serve", "--priority", "0", "--watchdog", "5", "--machine", f"{file}:Machine"),
        *("--listen", address, "--limits", str(limits)),
        stderr=tmp_path / "log",
    )
    try:
        trainer, operator = connect(address), connect(address, "operator", operator=True)
        assert trainer.ask("arm").kind == "reply"
        job = trainer.ask("job", {"name": "no", "kind": "play"}, {"commands": np.zeros((5, 2), np.float32)})
        assert "shoulder.position stands at 2.2, outside its limits" in job.body["why"]
        assert "only the operator" in trainer.ask("recover").body["why"]
        assert "is armed" in operator.ask("recover").body["why"]
        trainer.ask("release")
        assert operator.ask("recover").kind == "reply"
        let_go = wait_for(lambda: (s := trainer.ask("status").body)["job"]["ended"] and s, "letting go")
        assert let_go["job"]["ended"] == "the operator let go"
        assert let_go["state"] == "idle"
        deadline = time.monotonic() + 60
        while (answer := operator.ask("recover")).kind == "reply":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "no joint stands outside" in answer.body["why"]
        assert answer.body["job"]["ended"] == "done"
        trainer.ask("arm")
        job = trainer.ask("job", {"name": "yes", "kind": "play"}, {"commands": np.full((5, 2), -0.1, np.float32)})
        assert job.kind == "reply", job.body
        trainer.close()
        operator.close()
    finally:
        serve.end()
