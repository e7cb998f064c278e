"""The starting file that `firsthand new` writes: from a URDF or MJCF file, a Gymnasium id, or the header of a log.

Values that can be read are filled in. Those that only the user knows are marked EDIT, with a value that runs.
"""

import csv
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firsthand_onboard.arm_model import ArmModel, Link, build_arm
from firsthand_onboard.kinematics import chain_jacobian, chain_points
from firsthand_onboard.mjcf import read_mjcf
from firsthand_onboard.spec import SpecError
from firsthand_onboard.urdf import read_urdf

from ..errors import UserError, how_to_install

MAX_LOG_BYTES = 200_000_000
MAX_LOG_ROWS = 200_000
DEFAULT_SPEED = 1.0
"""Where a file has no velocity limit, in rad/s or m/s."""
HOME_TRIES = 300
USUAL_STEPS = 100
"""Steps of a trajectory; a slow process takes all of it to go through its range."""
COMMAND_WORDS = ("command", "cmd", "action", "valve", "pump", "voltage", "torque", "pwm", "input")
VELOCITY_WORDS = ("velocity", "vel", "speed", "rate", "qd", "dq")
TIME_WORDS = ("time", "t", "timestamp", "stamp")
SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0}
"""By the unit that a column of times is in."""

HEAD = '''"""{title}

Written by `firsthand new`. It runs as it is; lines marked EDIT are yours to look at.

firsthand check {file}:task    # what is missing or doubtful; moves nothing
firsthand train {file}:task
"""
'''


def _head(title: str, file: str) -> str:
    return HEAD.format(title=title, file=_plain(file))


# Arms from URDF and MJCF


def arm_text(file: str, model: Path, *, tip: str | None, base: str | None) -> str:
    """A starting file for the arm in a URDF or MJCF file; its path is written relative to the starting file."""
    is_mjcf = _is_mjcf(model)
    if tip is None:
        raise UserError(f"tip is missing; name the link that shall follow references: {_ends(model, is_mjcf)}.")
    try:
        links = (read_mjcf if is_mjcf else read_urdf)(model, tip=tip, base=base)
        unlimited = {link.name: _free_range(link) for link in links if link.kind != "fixed" and link.low is None}
        arm = build_arm(links, model, tip, 0.0, unlimited, {})
    except SpecError as error:
        as_option = re.sub(r"\bbase='([^']*)'", r"--base \1", str(error))
        raise UserError(f"{as_option}.") from None
    home = _bent_home(arm)
    turns = [joint.kind == "revolute" for joint in arm.chain.joints]
    beside = Path(os.path.relpath(model.absolute(), Path(file).absolute().parent))
    options = f"tip={_quote(tip)}" + (f", base={_quote(base)}" if base else "")
    limits = ""
    if unlimited:
        given = "".join(
            f"        {_quote(name)}: ({_number(a)}, {_number(b)}),\n" for name, (a, b) in unlimited.items()
        )
        limits = f"    limits={{  # EDIT: the file has none for these\n{given}    }},\n"
    speeds = [DEFAULT_SPEED if speed is None else speed for speed in arm.speed]
    guessed = [name for name, speed in zip(arm.joints, arm.speed, strict=True) if speed is None]
    count = len(arm.joints)
    call = f"fh.ArmModel.{'from_mjcf' if is_mjcf else 'from_urdf'}"
    where = f"Path(__file__).parent / {_quote(beside.as_posix())}"
    reader = f"{call}(\n    {where},\n    {options},\n{limits})"
    reach = ", ".join("0.5" if turn else _number(0.2 * (b - a), 2) for turn, a, b in _ranges(arm, turns))
    return f'''{_head(f"{arm_name(model)}: its tip {_plain(tip)} follows references in space.", file)}
from pathlib import Path

import numpy as np

import firsthand as fh
from firsthand.robots.servo_axes import ServoAxes, place_axes

PERIOD_S = 0.05  # EDIT: control period in seconds

# {_plain(", ".join(arm.joints))}
HOME = {_tuple(home)}  # EDIT: a pose in the middle of where it shall work
REACH = ({reach}{"," if count == 1 else ""})  # EDIT: how far from HOME each joint may go, in rad or m
SPEED = {_tuple(speeds)}  # {_speed_note(guessed)}
SHARE = 0.3  # EDIT: share of SPEED that references may ask for; commands may use twice that

arm = {reader}
low = np.maximum(arm.position_low, np.subtract(HOME, REACH))  # the file's limits hold, too
high = np.minimum(arm.position_high, np.add(HOME, REACH))
fastest = min(1.0, 2 * SHARE) * np.asarray(SPEED)


def connect():
    """EDIT: your robot as a Gymnasium environment; give hardware=True and stopping below if it is a real one.

    An action has one speed per joint, in rad/s or m/s. An observation has all positions, then all velocities.
    Until you have it, this simulates joints under velocity servos. Self-collision is not checked, here or anywhere.
    """
    return ServoAxes(low=arm.position_low, high=arm.position_high, speed=SPEED, period_s=PERIOD_S, home=HOME)


task = fh.GymnasiumTask(
    name="{arm_name(model)}",
    env=connect,
    place=place_axes,  # EDIT: leave it out for a robot that cannot be put somewhere
    tracked=arm.chain,
    positions=range({count}),
    velocities=range({count}, {2 * count}),
    names=arm.names,
    units=arm.units,
    position_low=low,
    position_high=high,
    rate=SHARE * np.asarray(SPEED),
    command_names=arm.joints,
    command_units=arm.units[{count}:],
    command_low=-fastest,
    command_high=fastest,
    neutral=0.0,  # EDIT: the command that leaves it alone
    command_memory=4,  # EDIT: dead time in control periods, and two more; `firsthand inspect` measures it
)
'''


def arm_name(model: Path) -> str:
    """The robot's name, from its file's."""
    return re.sub(r"\W+", "_", model.stem, flags=re.ASCII).strip("_") or "arm"


def _is_mjcf(model: Path) -> bool:
    from firsthand_onboard.robot_xml import RobotFile

    try:
        return RobotFile(model).root.tag == "mujoco"
    except SpecError as error:
        raise UserError(f"{error}.") from None


def _ends(model: Path, is_mjcf: bool) -> str:
    """Links without a child, of which one is mostly meant."""
    from firsthand_onboard.robot_xml import RobotFile, list_names

    root = RobotFile(model).root
    if is_mjcf:
        names = [e.get("name", "") for e in root.iter() if e.tag in ("site", "body") and e.get("name")]
        return f"--tip NAME, one of {list_names(names)}"
    parents = {e.get("link") for e in root.iter("parent")}
    names = [e.get("name", "") for e in root.findall("link") if e.get("name") not in parents]
    return f"--tip LINK; links at an end of the robot are {list_names(names)}"


def _free_range(link: Link) -> tuple[float, float]:
    return (-math.pi, math.pi) if link.kind == "revolute" else (-1.0, 1.0)


def _ranges(arm: ArmModel, turns: list[bool]) -> Any:
    return zip(turns, arm.position_low, arm.position_high, strict=True)


def _speed_note(guessed: list[str]) -> str:
    if not guessed:
        return "highest speed per joint, from the file, in rad/s or m/s"
    return f"EDIT: highest speed per joint in rad/s or m/s; the file has none for {_plain(', '.join(guessed))}"


def _tuple(values: Any) -> str:
    shown = ", ".join(_number(value) for value in values)
    return f"({shown},)" if len(list(values)) == 1 else f"({shown})"


def _number(value: float, digits: int = 4) -> str:
    """A float in Python, rounded: 2.0 for 2."""
    return repr(float(f"{float(value):.{digits}g}"))


def _bent_home(arm: ArmModel) -> list[float]:
    """A pose near the middle of the joints' ranges in which the tip can move every way, which a stretched arm cannot.

    The arm's joints are above the base, and its tip well above, where that can be.
    """
    low, high, middle = (np.asarray(v) for v in (arm.position_low, arm.position_high, arm.middle))
    spread = np.minimum(0.25 * (high - low), 0.8)
    tries = middle + np.random.default_rng(0).uniform(-spread, spread, (HOME_TRIES, len(middle)))
    reach = float(np.linalg.norm(np.asarray(chain_points(arm.chain, tries))[:, -1], axis=-1).max())
    best = max(tries, key=lambda pose: _ease(arm, pose, reach))
    for i, value in enumerate(middle):  # a joint that makes no difference, such as a turret, stays in the middle
        straight = np.where(np.arange(len(middle)) == i, value, best)
        if _ease(arm, straight, reach) >= _ease(arm, best, reach) - 1e-6:
            best = straight
    return [round(float(value), 2) for value in np.clip(best, low, high)]


def _ease(arm: ArmModel, pose: np.ndarray, reach: float) -> float:
    """How freely the tip moves in a pose, less what lies below the base and the tip's lack of height."""
    points = np.asarray(chain_points(arm.chain, pose))
    below = max(-float(points[:, 2].min()), 0.0) + max(0.3 * reach - float(points[-1, 2]), 0.0)
    return float(np.linalg.svd(chain_jacobian(arm.chain, pose), compute_uv=False)[-1]) - 10 * below


# Gymnasium environments


def gymnasium_text(file: str, name: str) -> str:
    """A starting file for a registered environment, which is made and reset once."""
    try:
        import gymnasium
    except ImportError:
        raise UserError(f"gymnasium is missing; install it with: {how_to_install('gymnasium')}.") from None
    from gymnasium.spaces import Box

    folders = [str(Path(file).absolute().parent), str(Path.cwd())]  # the first is where the starting file imports from
    sys.path[:0] = folders
    try:
        env = gymnasium.make(name)
        observation, _ = env.reset(seed=0)
    except Exception as error:
        raise UserError(
            f"gymnasium.make({name!r}) fails: {type(error).__name__}: {_line(error)}. Your own must be registered "
            "(gymnasium.register) in a module that can be imported: give MODULE:ID, for example crane:Crane-v0 "
            f"for crane.py beside {Path(file).name}."
        ) from None
    finally:
        for folder in folders:
            sys.path.remove(folder)
    try:
        if not isinstance(env.action_space, Box):
            raise UserError(f"{name} has the action space {env.action_space}, but actions must be continuous (a Box).")
        space, actions = env.observation_space, env.action_space
        period = getattr(env.unwrapped, "dt", None)
    finally:
        env.close()
    is_vector = isinstance(space, Box) and len(space.shape) == 1
    size = int(np.size(observation)) if is_vector else 1
    first = np.asarray(observation, float).reshape(-1) if is_vector else np.zeros(1)
    low, high = _observed_range(space if is_vector else None, first)
    infinite = not (np.isfinite(actions.low).all() and np.isfinite(actions.high).all())
    one_sided = not infinite and bool((actions.low >= 0).all())
    trajectory_s = USUAL_STEPS * float(period or 0.05)
    shown = ", ".join(f"{i}: {value:.3g}" for i, value in enumerate(first[:12])) + (" …" if size > 12 else "")
    observe = (
        "lambda observation: observation,  # EDIT: from an observation to what is measured; arctan2 for cos and sin"
        if is_vector
        else "lambda observation: [0.0],  # EDIT: from an observation to a vector of what is measured"
    )
    lines = [
        f"    name={_quote(name)},",
        f"    env=lambda: gymnasium.make({_quote(name)}),",
        f"    observe={observe}",
        "    positions=(0,),  # EDIT: entries that are positions, of those above",
        "    velocities=(),  # EDIT: entries that are their velocities, in the same order; () if none are measured",
        "    tracked=None,  # EDIT: entries that follow references; None for all positions",
        "    angles=(),  # EDIT: entries that jump at ±π",
        "    names=None,  # EDIT: what the entries are called; also command_names=, units=, command_units=",
        '    unit=None,  # EDIT: of what is tracked, for tables: "rad", "m"; None: metres, or rad for angles',
        f"    position_low={_number(low)},  # EDIT: where it shall work, one per position",
        f"    position_high={_number(high)},  # EDIT",
        f"    rate={_number((high - low) / max(10.0, trajectory_s))},  # EDIT: highest speed that references may ask "
        "for, per second",
    ]
    if period is None:
        lines.append("    period_s=0.05,  # EDIT: control period in seconds; the environment does not tell it")
    if one_sided:  # a pump, a heater: it is not the middle of their range that leaves a robot alone
        lowest = np.asarray(actions.low, float).reshape(-1)
        value = _number(lowest[0]) if (lowest == lowest[0]).all() else _tuple(lowest)
        lines.append(f"    neutral={value},  # EDIT: the command that leaves it alone; here the lowest one")
    if infinite:
        lines += [
            "    command_low=-1.0,  # EDIT: the action space has no finite range",
            "    command_high=1.0,  # EDIT",
        ]
    body = "\n".join(lines)
    return f"""{_head(f"{_plain(name)} of Gymnasium: what is tracked follows references.", file)}
import gymnasium

import firsthand as fh

# Observed after a reset (entry: value): {shown if is_vector else type(space).__name__}

task = fh.GymnasiumTask(
{body}
)
"""


def _observed_range(space: Any, first: np.ndarray) -> tuple[float, float]:
    """A range of entry 0: the space's, or one around where it is."""
    if space is not None and np.isfinite(space.low.reshape(-1)[0]) and np.isfinite(space.high.reshape(-1)[0]):
        return float(space.low.reshape(-1)[0]), float(space.high.reshape(-1)[0])
    return float(first[0]) - 1.0, float(first[0]) + 1.0


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).removesuffix(".")


# Logs


@dataclass(frozen=True)
class LogColumns:
    """The probable meaning of a log's columns, with their numbers."""

    time: str | None
    positions: tuple[str, ...]
    velocities: tuple[str, ...]
    commands: tuple[str, ...]
    values: dict[str, np.ndarray]


def log_text(file: str, log: Path, *, commands: tuple[str, ...] = ()) -> str:
    """A starting file from the header and the ranges of a CSV log."""
    found = read_log(log, commands)
    count, driven = len(found.positions), len(found.commands)
    period = _log_period(found)
    ranges = [_padded_range(found.values[name]) for name in found.positions]
    low, high = [a for a, _ in ranges], [b for _, b in ranges]
    command_ranges = [_padded_range(found.values[name], pad=0.0) for name in found.commands]
    speeds = [_fastest(found, name, period or 0.05) for name in found.positions]
    period_note = (
        f"from {_quote(found.time)} of the log"
        if found.time and period
        else "EDIT: the log has no time; control period in seconds"
    )
    if driven != count:
        moved = f"the first {min(driven, count)}" if min(driven, count) > 1 else "the first one only"
        pairs = f"# Commands: {driven}, positions: {count}; the stand-in below moves {moved}.\n"
    else:
        pairs = ""
    names = _without_units((*found.positions, *found.velocities, *found.commands))
    velocities = f"range({count}, {count + len(found.velocities)})" if found.velocities else "()"
    return f'''{_head(f"The robot of {_plain(log.name)}: its positions follow references.", file)}
import firsthand as fh
from firsthand.robots.servo_axes import ServoAxes, place_axes

PERIOD_S = {_number(period or 0.05)}  # {period_note}

# EDIT: what the columns of {_plain(log.name)} are taken for. Units are the log's.
POSITIONS = {_names(names[:count])}
VELOCITIES = {_names(names[count:-driven])}
COMMANDS = {_names(names[-driven:])}
{pairs}
LOW = {_tuple(low)}  # EDIT: limits per position; the range in the log
HIGH = {_tuple(high)}  # EDIT
SPEED = {_tuple(speeds)}  # EDIT: fast motions in the log, per second
COMMAND_LOW = {_tuple([a for a, _ in command_ranges])}  # EDIT: the range in the log
COMMAND_HIGH = {_tuple([b for _, b in command_ranges])}  # EDIT


def connect():
    """EDIT: your robot as a Gymnasium environment; give hardware=True and stopping below if it is a real one.

    An action has the COMMANDS; an observation has the POSITIONS, then the VELOCITIES.
    Until you have it, this simulates axes whose speed follows their command.
    """
    return ServoAxes(
        low=LOW,
        high=HIGH,
        speed=SPEED,
        period_s=PERIOD_S,
        command_low=COMMAND_LOW,
        command_high=COMMAND_HIGH,
        has_velocities={bool(found.velocities)},
    )


task = fh.GymnasiumTask(
    name="{arm_name(log)}",
    env=connect,
    place=place_axes,  # EDIT: leave it out for a robot that cannot be put somewhere
    positions=range({count}),
    velocities={velocities},
    names=(*POSITIONS, *VELOCITIES),
    units={_names([_unit(name) for name in (*found.positions, *found.velocities)])},  # EDIT: rad, m, bar …
    # unit="rad",  # EDIT: of what is tracked, in tables and figures; m where nothing is given
    position_low=LOW,
    position_high=HIGH,
    rate=[0.5 * speed for speed in SPEED],
    command_names=COMMANDS,
    command_units={_names([_unit(name) for name in found.commands])},  # EDIT
    neutral=None,  # EDIT: the command that leaves it alone; None is the middle of the range
    period_s=PERIOD_S,
)
'''


def _unit(column: str) -> str:
    """The unit in brackets at the end of a column's name; empty where there is none."""
    found = re.search(r"[\[(]([^\[\]()]{1,12})[\])]\s*$", column)
    return found.group(1).strip() if found else ""


def _without_units(columns: Sequence[str]) -> list[str]:
    """Names without the unit in brackets, which a log may have in its header; as they are if two would be the same."""
    plain = [re.sub(r"\s*\[[^\[\]]{1,12}\]\s*$", "", column) for column in columns]
    return plain if all(plain) and len(set(plain)) == len(plain) else list(columns)


def read_log(log: Path, commands: tuple[str, ...]) -> LogColumns:
    """The columns of a CSV log by what their names say. Raise `UserError` where commands or positions are not found."""
    header, rows = _read_rows(log)
    numbers = _columns(log, header, rows)
    for name in commands:
        if name not in numbers:
            raise UserError(f"commands names {name!r}, but the columns of {log} are {', '.join(header)}.")
    time = next((name for name in numbers if _seconds_of(name) is not None), None)
    by_word = tuple(name for name in numbers if _has_word(name, COMMAND_WORDS))
    given = commands or by_word or tuple(name for name in numbers if f"{name}.position" in numbers)
    if not given:
        others = [name for name in header if name != time]
        raise UserError(
            f"no column of {log} is recognised as a command; name them: --commands NAME …, of {', '.join(others)}."
        )
    rest = [name for name in numbers if name != time and name not in given]
    velocities = tuple(name for name in rest if _has_word(name, VELOCITY_WORDS))
    positions = tuple(name for name in rest if name not in velocities)
    if not positions:
        raise UserError(f"{log} has commands {', '.join(given)}, but no column that could be a position.")
    if len(velocities) != len(positions):
        velocities = ()
    return LogColumns(time, positions, velocities, given, numbers)


def _read_rows(log: Path) -> tuple[list[str], list[list[str]]]:
    try:
        if not log.is_file():
            raise UserError(f"there is no log {log}.")
        if log.stat().st_size > MAX_LOG_BYTES:
            raise UserError(
                f"{log} is larger than {MAX_LOG_BYTES // 10**6} MB; cut a piece out of it, header included."
            )
        with log.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            header = [name.strip() for name in next(reader, [])]
            rows = [row for row, _ in zip(reader, range(MAX_LOG_ROWS), strict=False) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {log} as CSV: {_line(error)}.") from None
    if len(header) < 2 or not rows or all(_is_float(name) for name in header):
        raise UserError(f"{log} must begin with a line of column names, with a row of numbers per time step below it.")
    return header, rows


def _columns(log: Path, header: list[str], rows: list[list[str]]) -> dict[str, np.ndarray]:
    """Columns of numbers by name; a column with a text in it is left out."""
    if len(set(header)) != len(header):
        raise UserError(f"{log} has two columns of the same name; rename one: {', '.join(header)}.")
    found = {}
    for i, name in enumerate(header):
        cells = [row[i] if i < len(row) else "" for row in rows]
        values = np.asarray([float(cell) if _is_float(cell) else np.nan for cell in cells])
        values[~np.isfinite(values)] = np.nan
        if name and np.isfinite(values).mean() > 0.5:
            found[name] = values
    return found


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _has_word(name: str, words: tuple[str, ...]) -> bool:
    parts = re.split(r"[^a-z]+", name.lower())
    return any(part in words for part in parts) or name.lower().startswith(("cmd", "command"))


def _log_period(found: LogColumns) -> float | None:
    if found.time is None:
        return None
    steps = (_seconds_of(found.time) or 1.0) * np.diff(found.values[found.time])
    steps = steps[np.isfinite(steps) & (steps > 0)]
    return float(f"{np.median(steps):.4g}") if len(steps) else None


def _seconds_of(column: str) -> float | None:
    """Seconds in the unit of a column of times: `time`, `time_ms`, `t [s]`; None where it does not hold times."""
    found = re.fullmatch(r"(\w+?)(?:_([^\W_]+)|\s*[\[(]\s*(\w+)\s*[\])])?", column.strip().lower())
    if found is None or found.group(1) not in TIME_WORDS:
        return None
    return SECONDS.get(found.group(2) or found.group(3) or "s")


def _padded_range(values: np.ndarray, pad: float = 0.02) -> tuple[float, float]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if not high > low:
        low, high = low - 1.0, high + 1.0
    return low - pad * (high - low), high + pad * (high - low)


def _fastest(found: LogColumns, name: str, period: float) -> float:
    """Fast motions of a column, per second."""
    rates = np.abs(np.diff(found.values[name])) / period
    rates = rates[np.isfinite(rates)]
    fast = float(np.quantile(rates, 0.95)) if len(rates) else 0.0
    low, high = _padded_range(found.values[name])
    return float(f"{max(fast, 0.01 * (high - low)):.3g}")


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(_quote(name) for name in names)
    return f"({shown},)" if len(names) == 1 else f"({shown})"


def _quote(text: str) -> str:
    """A name from somebody's file as a text in Python: nothing in it ends the text, and every character is seen."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def _plain(text: str) -> str:
    """A name from somebody's file for a comment or a docstring: nothing in it ends either."""
    return "".join(c if c.isprintable() and c not in '\\"' else "_" for c in text)
