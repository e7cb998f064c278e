"""`firsthand-onboard serve | simulate | look | status | stop | acknowledge`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__
from .answers import Status, read_status, refusal
from .child_process import module_command
from .command_check import CommandLimits
from .faults import temporary_name
from .gate_limits import COMMAND_KINDS, GateLimits, check_stops_are_known
from .homing import Homing, HomingController
from .identity import MachineIdentity, key_file
from .link import ClientEnd, RobotEnd, stop_machine
from .machine import MachineError, as_measured, load_machine
from .machine_lock import lock_machine
from .messages import Message
from .network import LinkError, Security, check_address, split_address
from .ordinary_files import read_ordinary
from .runtime import Runtime, RuntimeSettings
from .signing import PUBLIC, Signer
from .simulation import PlantServer
from .spec import ControlSpec, SpecError
from .stop_way import NEXT_PORT, StopUnreachable, StopWay
from .timing import lock_memory, request_real_time
from .watchdog import key_value
from .watched import WatchedMachine

WRONG_INPUT = 2
MAX_TEXT = 1 << 24
"""Bytes of a specification, of limits or of a homing."""
ONE_THREAD = "OPENBLAS_NUM_THREADS"
ADDRESS = "tcp/127.0.0.1:7447"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="firsthand-onboard", description="The robot's side of firsthand.")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True)

    serve = commands.add_parser("serve", help="run the control loop of a machine and wait for a trainer")
    _machine_options(serve)
    serve.add_argument("--spec", type=Path, help="the control specification (JSON), if the machine has none itself")
    serve.add_argument("--limits", type=Path, help="the gate's limits (JSON); `look --limits` prints the default ones")
    serve.add_argument(
        "--stop-lag", type=float, help="seconds at its speed for which a joint goes on after neutral, if undeclared"
    )
    serve.add_argument(
        "--command-kind", choices=COMMAND_KINDS, help="what commands set, if the machine does not say so itself"
    )
    serve.add_argument("--wide-limits", action="store_true", help="only range and finiteness; for simulations")
    serve.add_argument("--listen", default=ADDRESS, help=f"tcp/127.0.0.1:port or tls/host:port (default {ADDRESS})")
    serve.add_argument("--certificates", type=Path, help="folder with ca.pem, robot.pem, robot.key; needed for tls")
    serve.add_argument(
        "--signer", type=Path, help="public key of the trainer that may make policies (policy.pub); others are refused"
    )
    serve.add_argument("--identity", type=Path, help="file with the machine's own key (default: one per --machine)")
    serve.add_argument("--stop-port", type=int, help="with tls: the port for stops alone (default: the next one)")
    serve.add_argument("--lease", type=float, default=1.0, help="seconds without a sign of the trainer (default 1)")
    serve.add_argument("--on-lost", choices=("finish", "stop"), default="finish", help="the running trajectory then")
    serve.add_argument("--rearm", choices=("trainer", "operator"), default="trainer", help="after a lost lease")
    serve.add_argument("--between", choices=("hold", "home"), default="hold", help="between episodes (default hold)")
    serve.add_argument("--homing", type=Path, help="where home is (JSON), if the machine does not say so itself")
    serve.add_argument("--speed", type=float, default=1.0, help="faster than real time, for simulations")
    serve.add_argument("--watchdog", type=float, help="seconds without a command until neutral (default: 2 periods)")
    serve.add_argument("--priority", type=int, default=50, help="SCHED_FIFO priority, 0 is off (default 50)")
    serve.add_argument("--latch", type=Path, help="file that keeps a fault, or a crash in motion, over restarts")

    simulate = commands.add_parser("simulate", help="a simulated machine in a process of its own")
    simulate.add_argument("--plant", default="firsthand_onboard.toy:Toy", help="module:Class of the physics")
    simulate.add_argument("--plant-option", type=key_value, action="append", default=[], metavar="KEY=VALUE")
    simulate_options(simulate)

    look = commands.add_parser("look", help="read a machine's sensors for a while, without moving it")
    _machine_options(look)
    look.add_argument("--seconds", type=float, default=5.0)
    look.add_argument("--spec", type=Path)
    look.add_argument("--limits", action="store_true", help="print the gate's default limits as JSON, and nothing else")

    for name, text in (
        ("status", "what a served machine is doing"),
        ("stop", "stop a served machine, in any state, until it is acknowledged"),
        ("recover", "lead joints that stand outside their limits back inside, slowly, while this runs"),
        ("acknowledge", "acknowledge its fault or a stop: the operator has looked"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("address", nargs="?", default=ADDRESS)
        command.add_argument("--certificates", type=Path, help="folder with ca.pem, operator.pem, operator.key")
        if name == "stop":
            command.add_argument("--stop-port", type=int, help="with tls: the port for stops (default: the next one)")
    command.add_argument(
        "--fault", type=int, metavar="N", help="its number; without it the fault is shown and asked for"
    )
    return top


def _machine_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--machine", required=True, help="module:Class or file.py:Class of the machine")
    command.add_argument("--machine-option", type=key_value, action="append", default=[], metavar="KEY=VALUE")


def simulate_options(command: Any) -> None:
    """The options that every simulated machine has."""
    command.add_argument("--listen", default="127.0.0.1:9870", help="UDP host:port (port 0: any free one)")
    command.add_argument("--speed", type=float, default=1.0, help="faster than real time")
    command.add_argument("--lock-step", action="store_true", help="time passes only when a command comes")
    command.add_argument("--timeout", type=float, default=0.08, help="the machine's own command timeout, seconds")
    command.add_argument("--log", type=Path, help="a line of JSON for everything that happens")


def main(arguments: list[str] | None = None) -> None:
    """Run one command; a mistake of the user's ends with one sentence and exit code 2."""
    given = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        sys.exit(globals()[f"_{given.command}"](given))
    except (SpecError, LinkError, MachineError) as error:
        print(f"firsthand-onboard: {error}", file=sys.stderr)
        sys.exit(WRONG_INPUT)


def _text(path: Path, what: str) -> str:
    try:
        return read_ordinary(path, MAX_TEXT).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"the {what} file {path} cannot be read: {error}") from None


def _check_writable(path: Path, what: str) -> None:
    if path.is_dir():
        raise SpecError(f"the {what} file {path} is a folder")
    trial = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except (OSError, ValueError) as error:
        raise SpecError(f"the {what} file {path} cannot be written: {error}") from None


def _spec(given: argparse.Namespace, machine: Any) -> ControlSpec:
    if given.spec is not None:
        return ControlSpec.from_json(_text(given.spec, "specification"))
    spec = getattr(machine, "spec", None)
    if spec is None:
        raise SpecError(f"the machine {given.machine!r} has no control specification of its own: give --spec FILE")
    return spec


def _homing(
    given: argparse.Namespace, spec: ControlSpec, limits: GateLimits, declared: str | None
) -> HomingController | None:
    if given.between == "hold":
        return None
    text = declared if given.homing is None else _text(given.homing, "homing")
    if text is None:
        raise SpecError(f"the machine {given.machine!r} does not say where home is: give --homing FILE")
    return HomingController(spec, limits, Homing.from_json(text))


def _signer(given: argparse.Namespace) -> Signer | None:
    """Whose policies this robot runs: the key that was named, or that lies beside its certificates."""
    path = given.signer
    if path is None and given.certificates is not None and (given.certificates / PUBLIC).exists():
        path = given.certificates / PUBLIC
    return None if path is None else Signer(path)


def _stop_way(given: argparse.Namespace, security: Security | None) -> StopWay:
    """The way for stops alone: on this computer always, at a port of its own where there are certificates."""
    host, port = split_address(given.listen)
    try:
        way = StopWay(port)
    except StopUnreachable as error:
        raise SpecError(f"{error}: choose another port with --listen") from None
    if given.listen.startswith("tls/") and security is not None:
        own = port + NEXT_PORT if given.stop_port is None else given.stop_port
        try:
            way.listen(host, own, security)
        except OSError as error:
            if given.stop_port is not None:
                raise SpecError(f"cannot listen for stops at port {own}: {error}; give another --stop-port") from None
            logging.getLogger("firsthand-onboard").warning(
                "stops from other computers have no port of their own, only the link: %d is taken (%s); --stop-port "
                "chooses another", own, error,
            )  # fmt: skip
    return way


def _command_limits(limits: GateLimits, period_s: float, speed: float) -> CommandLimits:
    """What the watchdog checks by itself; a command may be a period older than where it is made."""
    low, high, neutral, rate = (np.asarray(v, float) for v in (limits.low, limits.high, limits.neutral, limits.rate))
    return CommandLimits(low, high, neutral, rate * period_s, period_s / speed, limits.command_age_s + period_s / speed)


def _warn_of_undeclared(spec: ControlSpec, limits: GateLimits) -> None:
    log = logging.getLogger("firsthand-onboard")
    names = [spec.layout.measured[at] for i, at in enumerate(spec.layout.position) if i not in limits.joint]
    if names:
        log.warning(
            "which command moves %s, and which way, is not declared: near their limits all commands are slowed, and "
            "at a limit no command is known to lead away from it",
            ", ".join(names),
        )


def _serve(given: argparse.Namespace) -> int:
    if not 0.01 <= given.speed <= 1000:
        raise SpecError(f"speed is {given.speed}, but must lie between 0.01 and 1000")
    if given.stop_lag is not None and not 0 <= given.stop_lag <= 60:  # NaN is not inside either
        raise SpecError(f"stop-lag is {given.stop_lag} s, but must lie between 0 and 60")
    settings = RuntimeSettings(given.lease, given.on_lost, given.rearm, given.latch)
    if given.latch is not None:
        _check_writable(given.latch, "latch")
    security = None if given.certificates is None else Security.in_folder(given.certificates, "robot")
    check_address(given.listen, security)
    signer = _signer(given)
    period_s = None if given.spec is None else _spec(given, None).period_s / min(given.speed, 1.0)
    machine = WatchedMachine(given.machine, dict(given.machine_option), timeout_s=given.watchdog, period_s=period_s)
    try:
        if given.speed != 1 and not machine.simulated:
            raise SpecError(
                f"speed is {given.speed:g}, but the machine {given.machine!r} does not say that it is a simulation "
                "(simulated = True): a real machine runs in real time, leave out --speed"
            )
        spec = _spec(given, machine)
        if given.wide_limits and not machine.simulated:
            raise SpecError(
                f"--wide-limits switches the gate's limits off, but the machine {given.machine!r} does not say that it "
                "is a simulation (simulated = True): leave it out, and change single limits with --limits"
            )
        stopping = machine.stopping
        if given.stop_lag is not None:
            if stopping is not None:
                raise SpecError(
                    f"--stop-lag is {given.stop_lag:g}, but the machine {given.machine!r} declares how it stops "
                    f"(stopping = {stopping}): leave it out, or change stop_lag_s with --limits"
                )
            stopping = {"lag_s": given.stop_lag}
        if given.wide_limits:
            limits = GateLimits.wide(spec, machine.neutral_command)
        elif given.limits is not None:
            limits = GateLimits.from_json(
                _text(given.limits, "limits"), spec, machine.neutral_command, machine.directions, stopping
            )
        else:
            limits = GateLimits.of(spec, machine.neutral_command, machine.directions, stopping)
        kind = given.command_kind or machine.command_kind
        check_stops_are_known(spec, limits, kind, simulated=machine.simulated)
        homing = _homing(given, spec, limits, machine.homing)
        log = logging.getLogger("firsthand-onboard")
        if not given.wide_limits:
            _warn_of_undeclared(spec, limits)
        machine.limit(_command_limits(limits, spec.period_s, given.speed))
        link = RobotEnd(given.listen, security)
        stop_way = _stop_way(given, security)
        identity = MachineIdentity(given.identity or key_file(given.machine, dict(given.machine_option)))
        runtime = Runtime(
            spec, machine, limits, link, settings, spec.period_s / given.speed, homing, stop_way, identity, signer
        )

        def stop(*_: object) -> None:
            runtime.stopping = True

        signal.signal(signal.SIGUSR1, stop_way.request)

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        if not machine.lock_step:
            warning = request_real_time(given.priority)
            machine.prefer(given.priority + 1 if given.priority > 0 else 0)  # it must be able to interrupt the loop
            for text in (warning, lock_memory()):
                if text:
                    log.warning(text)
        print(
            f"serving {spec.robot} at {given.listen}, {1 / runtime.executor.clock.period_s:.4g} Hz"
            f"{' in lock-step' if machine.lock_step else ''}, watchdog process {machine.process.pid}",
            flush=True,
        )
        runtime.run()
        stop_way.close()
        link.close()
    finally:
        machine.close()
    return 0


def run_plant(plant: Any, given: argparse.Namespace) -> int:
    """Serve a plant until the process is ended."""
    if not 0.01 <= given.speed <= 1000:
        raise SpecError(f"speed is {given.speed}, but must lie between 0.01 and 1000")
    if given.log is not None:
        try:
            given.log.open("a").close()
        except OSError as error:
            raise SpecError(f"the log file {given.log} cannot be written: {error}") from None
    server = PlantServer(plant, speed=given.speed, lock_step=given.lock_step, timeout_s=given.timeout, log=given.log)
    host = given.listen.rpartition(":")[0]
    try:
        port = server.bind(given.listen)
    except OSError as error:
        raise SpecError(f"cannot listen at {given.listen}: {error}") from None
    print(f"simulated {plant.spec.robot} at {host}:{port}", flush=True)
    server.run()
    return 0


def _simulate(given: argparse.Namespace) -> int:
    return run_plant(load_machine(given.plant, dict(given.plant_option)), given)


def _look(given: argparse.Namespace) -> int:
    if not 0 < given.seconds <= 86400:
        raise SpecError(f"seconds is {given.seconds}, but must be above 0 and at most 86400")
    lock = lock_machine(given.machine, dict(given.machine_option))  # `neutral` would stop what somebody else moves
    machine = load_machine(given.machine, dict(given.machine_option))
    spec = _spec(given, machine)
    if given.limits:
        declared = [getattr(machine, name, None) for name in ("neutral_command", "directions", "stopping")]
        limits = GateLimits.of(spec, *declared)
        print(json.dumps(json.loads(limits.to_json()), indent=2))
        return 0
    values, took = [], []
    end = time.monotonic() + given.seconds
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            machine.neutral()
            began = time.monotonic()
            values.append(as_measured(machine.read(), spec.layout.num_measured))
        except MachineError:
            raise
        except Exception as error:  # a driver may raise anything
            raise MachineError(f"the machine cannot be read: {type(error).__name__}: {error}") from None
        took.append(time.monotonic() - began)
        time.sleep(max(spec.period_s - (time.monotonic() - began), 0.0))
    machine.neutral()
    table = np.stack(values)
    print(f"{len(table)} readings in {given.seconds:g} s; a reading takes up to {1000 * max(took):.2f} ms")
    print(f"{'':<24}{'mean':>12}{'deviation':>12}{'least':>12}{'most':>12}   missing")
    for name, column in zip(spec.layout.measured, table.T):  # noqa: B905 (Python 3.10)
        good = column[np.isfinite(column)]
        numbers = (good.mean(), good.std(), good.min(), good.max()) if good.size else (np.nan,) * 4
        print(f"{name:<24}" + "".join(f"{n:>12.5g}" for n in numbers) + f"{len(column) - good.size:>10}")
    lock.release()
    return 0


def _client(given: argparse.Namespace) -> tuple[ClientEnd, Message]:
    """A link to the robot's program, and what it says when it is greeted."""
    security = None if given.certificates is None else Security.in_folder(given.certificates, "operator")
    client = ClientEnd(given.address, security, run="operator", operator=True)
    return client, client.hello()


def _status(given: argparse.Namespace) -> int:
    client, hello = _client(given)
    client.close()
    read_status(hello)
    shown = {n: v for n, v in hello.body.items() if n not in ("spec", "limits", "yours")}
    print(json.dumps(shown, indent=2))
    return 0


def _stop(given: argparse.Namespace) -> int:
    security = None if given.certificates is None else Security.in_folder(given.certificates, "operator")
    if stop_machine(given.address, security, stop_port=given.stop_port)["state"] != "fault":
        raise LinkError("the machine was told to stop, but does not say that it stands")
    print(f"stopped; nothing moves until `firsthand-onboard acknowledge {given.address}`")
    return 0


def _recover(given: argparse.Namespace) -> int:
    client, hello = _client(given)
    try:
        status = read_status(hello)
        if not sys.stdin.isatty():
            raise SpecError("an operator must watch while a machine is led back: run `recover` in a terminal")
        print(f"the machine is {status.state}; it moves while this program runs, Ctrl-C lets it go")
        if input("is everybody out of its reach, and the emergency stop in your hand? [y/N] ").strip().lower() != "y":
            return 1
        return recover_machine(client)
    except (EOFError, KeyboardInterrupt):
        return 1
    finally:
        client.close()


def recover_machine(client: ClientEnd) -> int:
    """Ask again and again until the machine is inside its limits; `LinkError` says why it is not."""
    while True:
        answer = client.ask("recover", patience_s=1.0, tries=1)
        job = read_status(answer).job
        if answer.kind == "refused":
            if job is None or job.kind != "recover" or not job.ended:
                raise LinkError(refusal(answer))
            if job.ended != "done":
                raise LinkError(f"the machine was not led back: {job.ended}")
            print("every joint is inside its limits")
            return 0
        time.sleep(0.1)


def _acknowledge(given: argparse.Namespace) -> int:
    client, hello = _client(given)
    try:
        status = read_status(hello)
        if status.state != "fault":
            print(f"there is no fault; the machine is {status.state}")
            return 0
        if given.fault is None and not _ask_confirmation(status):
            print("not acknowledged")
            return 1
        number = status.fault_number if given.fault is None else given.fault
        answer = client.acknowledge(number)
    finally:
        client.close()
    if answer.kind == "refused":
        raise LinkError(refusal(answer))
    print(f"acknowledged: {status.fault}; the machine is {read_status(answer).state}")
    return 0


def _ask_confirmation(status: Status) -> bool:
    """Whether somebody at the terminal has read the fault and says yes."""
    fault = f"fault {status.fault_number}: {status.fault}"
    if not sys.stdin.isatty():
        raise SpecError(f"{fault}; without a terminal, give --fault {status.fault_number}")
    print(fault)
    try:
        return input("acknowledge it, so that the machine may move again? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def console() -> None:
    """Entry point; a closed pipe is not an error."""
    if ONE_THREAD not in os.environ:  # must be set before numpy is loaded: a helper thread only adds jitter here
        os.environ[ONE_THREAD] = "1"
        os.execv(sys.executable, [*module_command("firsthand_onboard"), *sys.argv[1:]])
    try:
        main()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
