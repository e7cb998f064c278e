"""The interface to hardware: implement `Machine`, and give the class to `firsthand-onboard serve`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .spec import SpecError


class MachineError(Exception):
    """The machine cannot be read or written; the message says why. Latches a fault."""


@runtime_checkable
class Machine(Protocol):
    """A machine: sensors, actuators, and a command at which it does nothing.

    May also have:

    - `spec`: the machine's ControlSpec, so that `serve` needs no `--spec`;
    - `neutral_command`: the command that means neutral (default: zero, where every command's range has zero inside;
      otherwise it must be given here or in the limits);
    - `directions`: per command channel (joint, sign): which position it moves (an index into `layout.position`, or -1),
      and 1 if a command above neutral moves it up, -1 if down; the gate's joint margins need it;
    - `homing`: a `firsthand_onboard.homing.Homing`, or its fields as a dict: where home is and how to go there between
      episodes (`serve --between home`); for machines whose commands set speeds;
    - `standby(**options)`: a class method, where a second connection may stay open beside the first: gives one that is
      ready for `neutral`, which the loop keeps for when the watchdog is lost; otherwise one is made only then;
    - `stopping`: a dict that says how joints stop: `lag_s` (distance to rest over speed), `dead_time_s`,
      `deceleration`, `brake` and `speed`, each a number or one per position (`gate_limits.read_stopping`). A machine
      that is not a simulation declares `lag_s` or `deceleration`, or is not served. Where neutral does not stop a
      joint, `brake` must say which share of the command range, opposed to the motion, does;
    - `command_kind`: what its commands set: "position", "rate" or "acceleration" (forces, torques), as `firsthand
      inspect` reports it. With "acceleration" every joint needs a `brake`;
    - `emergency_stop()` and `enabling_switch()`: what these inputs say, True while pressed and True while held. They
      are looked at every 10 ms; whatever is not clearly False, or clearly True, counts as a stop, which latches;
    - `resource(**options)`: a class or static method that names the hardware (a device, an address), so that two ways
      to write it are one machine: only one program may serve a machine;
    - `lock_step`: true for a simulation whose time passes only in `write`;
    - `simulated`: true for any other simulation. A trainer may put somewhere only what says so: the `reset` of a driver
      may mean something else;
    - `reset(position)`: a simulation's way to put itself at rest in a configuration;
    - `close()`.

    A machine that takes its own neutral position when no command arrives for a while (its own command timeout) is
    safe even if this whole computer dies. Ask your valve amplifier or motor drive for one.
    """

    def read(self) -> np.ndarray:
        """What the sensors say now, in the order of `layout.measured`.

        Shall not block for longer than a period, except the first time, when a connection may have to be waited for.
        """
        ...

    def write(self, command: np.ndarray) -> None:
        """Apply a command, in the order of `layout.commands`. Shall not block."""
        ...

    def neutral(self) -> None:
        """Bring the machine to rest at once. Must work at any time, and as often as it is called."""
        ...


def find_machine(name: str) -> Any:
    """The class that `module:Class` or `file.py:Class` names."""
    module_name, _, class_name = name.rpartition(":")
    if not module_name or not class_name:
        raise SpecError(f"the machine is {name!r}, but must be given as module:Class or file.py:Class")
    try:
        if module_name.endswith(".py"):
            path = Path(module_name).resolve()
            if not path.is_file():
                raise SpecError(f"the machine's file {module_name} does not exist")
            sys.path.insert(0, str(path.parent))
            module = importlib.import_module(path.stem)
        else:
            module = importlib.import_module(module_name)
        return getattr(module, class_name)
    except SpecError:
        raise
    except Exception as error:  # a file of the user's may raise anything
        raise SpecError(f"the machine {name!r} cannot be loaded: {type(error).__name__}: {error}") from None


def load_machine(name: str, options: dict[str, str]) -> Any:
    """The machine that `module:Class` or `file.py:Class` names, made with `options` as keyword arguments."""
    return make_machine(find_machine(name), name, options)


def make_machine(factory: Any, name: str, options: dict[str, str]) -> Any:
    """What a class makes of `options`; anything that goes wrong becomes one sentence."""
    try:
        return factory(**options)
    except (SpecError, MachineError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise SpecError(f"the machine {name!r} cannot be made with the options {options}: {why}") from None


def as_measured(reading: Any, size: int) -> np.ndarray:
    """A reading as a float32 array of `size` numbers; `MachineError` for anything else."""
    with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, and counts as missing
        measured = check_row(reading).astype(np.float32)
    if measured.size != size:
        raise MachineError(f"the machine measures {measured.size} values, but the specification names {size}")
    return measured


def check_row(reading: Any) -> np.ndarray:
    """A reading as a row of float64 numbers; `MachineError` for an array of any other shape."""
    row = np.asarray(reading, "<f8")
    if row.ndim != 1:
        raise MachineError(f"the machine measures an array of shape {row.shape}, but must measure one row of numbers")
    return row


def is_simulated(machine: Any) -> bool:
    """Whether it is a simulation, by its own word."""
    return getattr(machine, "simulated", False) is True or getattr(machine, "lock_step", False) is True


def can_reset(machine: Any) -> bool:
    """Whether it is a simulation that can be put somewhere."""
    return is_simulated(machine) and callable(getattr(machine, "reset", None))


def check_machine(machine: Any, name: str) -> None:
    """Raise `SpecError` for something that is not a machine."""
    missing = [method for method in ("read", "write", "neutral") if not callable(getattr(machine, method, None))]
    if missing:
        raise SpecError(f"the machine {name!r} lacks {', '.join(missing)}")
