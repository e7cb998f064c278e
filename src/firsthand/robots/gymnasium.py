"""Any Gymnasium environment as a robot: the user declares what the observation holds, the rest is derived."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from firsthand_onboard import (
    ControlSpec,
    Limits,
    PlanarChain,
    PolicyShape,
    ReferenceSpec,
    Scales,
    SelectedOutput,
    SerialChain,
    StateLayout,
)
from firsthand_onboard.features import PEAK_OF_QUINTIC, build_reference
from firsthand_onboard.spec import SpecError

from ..errors import UserError
from ..plants.sensors import Sensors
from ..tasks.base import Task
from ..tasks.box import BoxGoals, BoxReferences, CheckedGoals, CheckedReferences, GoalBox, GoalTours
from ..tasks.cost import StepCost
from ..tasks.goals import AbstractGoal, Cost, Residuals, Track, check_weights
from ..tasks.set_points import SetPointReferences, SetPoints
from ..units import error_unit
from .environment import GymnasiumRobot, environment_name
from .hardware_gate import HardwareGate
from .limits import is_inside

OTHER_PERIOD = 100.0
"""A control period this many times the environment's own, or less than its inverse, is in another unit."""
DEFAULT_STEPS = 100
"""Control steps per trajectory, unless the user chooses."""
Numbers = float | Sequence[float] | np.ndarray
"""One number for every channel, or one per channel."""


@dataclass(frozen=True)
class GymnasiumTask:
    """What a user says about an environment. Names a robot: `firsthand train my_robot.py:task`.

    Entries are counted in the *measurement*: what `observe` makes of an observation, or the observation itself.
    """

    env: Callable[[], Any]
    """Makes the environment, for example `lambda: gymnasium.make("Pendulum-v1")`."""
    positions: Sequence[int | str]
    """Which entries of the measurement are positions, by number or by name."""
    position_low: Numbers
    """Lower limit per position."""
    position_high: Numbers
    """Upper limit per position."""
    rate: Numbers | None = None
    """Highest speed that a reference may ask for, per goal coordinate, in both directions; needed where it moves."""
    velocities: Sequence[int | str] = ()
    """Which entries are the velocities of these positions, in the same order; empty if none are measured."""
    tracked: Sequence[int | str] | PlanarChain | SerialChain | None = None
    """What shall follow references: entries of the measurement (by default the positions), or the tip of an arm."""
    observe: Callable[[Any], Any] | None = None
    """From an observation to the measurement, a vector; by default the observation itself."""
    angles: Sequence[int | str] = ()
    """Entries that are angles and jump at ±π: they are followed across the jump."""
    name: str | None = None
    """The robot's name; by default the environment's."""
    period_s: float | None = None
    """Control period in seconds; by default the environment's own `dt`."""
    steps: int | None = None
    """H, control steps per trajectory. By default 100, and fewer at first for a robot that falls or runs away."""
    trajectories: int = 10
    """N, trajectories per episode."""
    command_memory: int = 4
    """Past commands in the state: at least the dead time in control periods, and one to spare."""
    measurement_memory: int = 0
    """Past measurements in the state: 1 or 2 if something that matters is not measured."""
    preview: Sequence[int] = (2, 4, 6, 8, 10, 12, 15)
    """How many steps ahead the policy sees the reference; the last at least dead time and lag."""
    command_low: Numbers | None = None
    """Lowest command per channel; by default the action space's, if that is finite. Narrower for a gentler robot."""
    command_high: Numbers | None = None
    """Highest command per channel."""
    goal_low: Numbers | None = None
    """Lower limit per goal coordinate; by default that of the positions. Needed where `tracked` has other entries."""
    goal_high: Numbers | None = None
    """Upper limit per goal coordinate."""
    goals: Callable[[np.random.Generator, np.ndarray, int], np.ndarray] | None = None
    """Draws goals: (rng, measurement now, count) to `(count, goal)`; by default uniformly inside the limits."""
    evaluation: Callable[[float], dict[str, np.ndarray]] | None = None
    """From a speed to paths by name, `(steps, outputs)` each; by default a line and a loop in the inner half, or tours
    through `goals` of your own at the speeds of training."""
    evaluation_speed: float | None = None
    """Speed along the evaluation paths; by default about half of what `rate` allows, or that of training."""
    place: Callable[[Any, np.ndarray], Any] | None = None
    """Puts the environment at rest at these positions and returns the observation there; evaluation starts so."""
    length_scale: Numbers | None = None
    """An error that costs 1, per tracked output where units differ; by default from the spread of the goals."""
    weight: Numbers = 1.0
    """Weight of the squared tracking error, per tracked output where some matter more."""
    change_weight: Numbers = 0.005
    """Weight of the squared change of command in the cost, per command where they differ."""
    limit_weight: Numbers = 0.1
    """Weight of the soft position limits in the cost, per position where they differ."""
    goal: AbstractGoal | None = None
    """What the robot shall do, one of `firsthand.goals`; by default what is tracked follows its reference."""
    residuals: Callable[[Any, Any, Any], Any] | None = None
    """Instead of `goal`: (x, u, r) to residuals, in JAX; a step costs the sum of their squares."""
    cost: Callable[[Any, Any, Any], Any] | None = None
    """Instead of `goal`: (x, u, r) to a cost of at least zero, in JAX. The policy is then not refined."""
    reference: Literal["move", "hold"] | None = None
    """Whether a reference moves smoothly to its goal or is the goal from the start, a set-point; by default it moves
    where there is something to follow, and otherwise holds the middle of the position limits."""
    names: Sequence[str] | None = None
    """Names of the measurement's entries."""
    units: Sequence[str] | None = None
    """Their units; "" for one without."""
    command_names: Sequence[str] | None = None
    """Names of the commands."""
    command_units: Sequence[str] | None = None
    """Units of the commands."""
    neutral: Numbers | None = None
    """The command that leaves the robot alone, 0 for a pump; by default the middle of the command range."""
    hidden: Sequence[int] = (128, 128)
    """Hidden layers of the policy."""
    scales: Scales | None = None
    """Scales of the policy's inputs; by default from limits and rates."""
    unit: str | None = None
    """Unit of what is tracked, for tables and figures; by default that of `units`, or else rad where only `angles` are
    tracked, otherwise m."""
    sensors: Sensors | None = None
    """Simulated sensors around what is measured: noise, lag, delay, outliers; errors are then those of the truth."""
    stop_at_limits: bool | None = None
    """Whether a motion ends where a position is about to leave its limits; by default where a reset begins inside.
    Entries that are `angles` have no stops."""
    safe: Callable[[np.ndarray], Any] | None = None
    """From the measurement to a command that brings the robot back after it was stopped at a limit; else neutral."""
    hardware: bool = False
    """Whether the environment moves something real: then it is neutral after each episode, only training and
    `firsthand evaluate` move it, and every command goes through the safety gate, which needs `stopping`."""
    stopping: Mapping[str, Any] | None = None
    """Of hardware: how its joints stop, as a machine behind `serve` declares it: `lag_s` and `dead_time_s`, or
    `deceleration` and `brake` for forces and torques; `speed`."""
    directions: Sequence[Sequence[int]] | None = None
    """Of hardware: per command which position it moves (-1 for none) and which way, 1 or -1."""

    def make_task(self) -> Task:
        """The task, derived from what was given and from the environment's spaces."""
        return self._task

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> GymnasiumRobot:
        """The environment, made when it is first needed."""
        if payload_kg:
            raise UserError(f"payload is {payload_kg} kg, but {task.name} cannot carry one; leave it out.")
        reader = _Reader(self)
        gate = (lambda: self._gate(task.spec, reader.angles)) if self.hardware else None
        return GymnasiumRobot(
            reader, task, seed=seed, hardware=self.hardware, sensors=self.sensors, safe=self.safe, gate=gate
        )

    def _gate(self, spec: ControlSpec, angles: Sequence[int]) -> HardwareGate:
        try:
            return HardwareGate(spec, self.stopping, self.directions, angles)
        except (SpecError, TypeError, ValueError) as error:
            raise UserError(f"hardware=True, and {error}.") from None

    @cached_property
    def _task(self) -> Task:
        try:
            task = _derive(self)
        except SpecError as error:
            raise UserError(f"{_own_words(str(error))}.") from None
        if self.hardware:  # before anything moves
            self._gate(task.spec, _Reader(self).angles)
        return task


def _own_words(message: str) -> str:
    """The control specification's fields as those of a `GymnasiumTask` are called."""
    message = message.replace("reference.rate_high", "rate").replace("reference.rate_low", "rate")
    message = re.sub(r"\blayout\.position\b", "positions", message)
    message = re.sub(r"\blayout\.velocity\b", "velocities", message)
    return re.sub(r"\b(?:limits|layout|reference)\.(?=[a-z])", "", message)


class _Reader:
    """How the driver makes and reads the environment."""

    def __init__(self, source: GymnasiumTask) -> None:
        self.source = source
        self.angles = tuple(find_number(entry, source.names) for entry in source.angles)

    def make(self) -> Any:
        """A new environment without Gymnasium's time limit."""
        try:
            env = without_time_limit(self.source.env())
            if not all(hasattr(env, part) for part in ("reset", "step", "close", "action_space", "observation_space")):
                raise UserError(f"env() returned {env!r}, but must return a Gymnasium environment.")
            return env
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise UserError(
                f"env() cannot make the environment: {type(error).__name__}: {' '.join(str(error).split())}."
            ) from error

    def measure(self, observation: Any) -> np.ndarray:
        """The measurement in an observation."""
        return measurement(self.source.observe, observation)

    def place(self, env: Any, position: np.ndarray) -> Any | None:
        """The observation of the user's hook, or None without one."""
        if self.source.place is None:
            return None
        observation = self.source.place(env, position)
        if observation is None:
            raise UserError("place returned None, but must return the observation at the new place.")
        return observation


def measurement(observe: Callable[[Any], Any] | None, observation: Any) -> np.ndarray:
    """The measurement in an observation: a new vector of single precision."""
    try:
        measured = np.array(observation if observe is None else observe(observation), dtype=np.float32)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(
            f"observe fails on an observation with {type(error).__name__}: {' '.join(str(error).split())}."
        ) from error
    if measured.ndim != 1:
        raise UserError(f"observe returned an array of shape {measured.shape}, but must return a vector.")
    return measured


def without_time_limit(env: Any) -> Any:
    """The environment without Gymnasium's `TimeLimit`: trajectories follow one another, and a robot has no such limit.

    Any other truncation or termination is the environment's own, and cuts the trajectory.
    """
    from gymnasium import Wrapper
    from gymnasium.wrappers import TimeLimit

    while isinstance(env, TimeLimit):
        env = env.env
    outer = env
    while isinstance(outer, Wrapper):
        while isinstance(outer.env, TimeLimit):
            outer.env = outer.env.env
        outer = outer.env
    return env


def _derive(source: GymnasiumTask) -> Task:
    """The task; the environment is made once to look at it."""
    _check_kinds(source)
    _check_plain_numbers(source)
    reader = _Reader(source)
    if not callable(source.env):
        raise UserError(f"env is {source.env!r}, but must be a function that makes the environment.")
    env = reader.make()
    try:
        name = environment_name(env)
        low, high = _command_range(source, env.action_space, name)
        first = _first_measurement(source, env, name)
        period_s = _period(source, env, name)
    finally:
        env.close()
    size = len(first)
    names = _texts("names", source.names, size, "entry of the measurement")
    positions = _entries("positions", source.positions, size, names)
    velocities = _entries("velocities", source.velocities, size, names)
    angles = _entries("angles", source.angles, size, names)
    if not positions:
        raise UserError("positions is empty, but at least one entry of the measurement must be a position.")
    position_low = _numbers("position_low", source.position_low, len(positions), "position")
    position_high = _numbers("position_high", source.position_high, len(positions), "position")
    if isinstance(source.tracked, PlanarChain | SerialChain):
        kinematics, space, goal_entries = source.tracked, "position", positions
    else:
        goal_entries = positions if source.tracked is None else _entries("tracked", source.tracked, size, names)
        kinematics, space = SelectedOutput(goal_entries), "output"
    goal = _own_goal(source)
    home = tuple((a + b) / 2 for a, b in zip(position_low, position_high, strict=True))
    limits = Limits(low, high, position_low, position_high, _neutral(source, low, high))
    ranges = {entry: (position_low[i], position_high[i]) for i, entry in enumerate(positions)}
    follows = goal is None or goal.tracks or source.tracked is not None or source.goal_low is not None
    box = _goal_box(source, goal_entries, ranges) if follows else GoalBox(home, home)
    holds = source.reference == "hold" or (source.reference is None and not follows)
    steps = int(DEFAULT_STEPS if source.steps is None else source.steps)
    rate = _rate(source, box, ranges, goal_entries, steps * period_s, holds=holds)
    units = _texts("units", source.units, size, "entry of the measurement")
    spec = ControlSpec(
        robot=source.name or name.removeprefix("The environment "),
        period_s=period_s,
        layout=StateLayout(
            measured=names or _names(size, positions, velocities),
            position=positions,
            velocity=velocities,
            commands=_texts("command_names", source.command_names, len(low), "command")
            or tuple(f"command {i}" for i in range(len(low))),
            command_memory=int(source.command_memory),
            measurement_memory=int(source.measurement_memory),
            measured_units=units,
            command_units=_texts("command_units", source.command_units, len(low), "command"),
        ),
        kinematics=kinematics,
        preview=tuple(int(ahead) for ahead in source.preview),
        scales=source.scales or Scales((0.0,) * size, (1.0,) * size, (1.0,) * size, 1.0, 1.0),
        limits=limits,
        reference=ReferenceSpec(space, steps, tuple(-r for r in rate), rate, "hold" if holds else "move"),
        policy=PolicyShape(tuple(int(width) for width in source.hidden)),
    )
    spread, moved = _sizes(spec, box)
    if source.scales is None:
        spec = replace(spec, scales=_default_scales(spec, goal_entries, box, 0.2 * spread, moved))
    own_goals, own_paths = source.goals, source.evaluation
    draw = SetPoints(spec, box) if holds else BoxGoals(spec, box)
    goals = draw if own_goals is None else CheckedGoals(own_goals, box)
    default_paths = SetPointReferences(spec, box, home) if holds else BoxReferences(spec, box, home)
    if own_goals is not None and not holds:
        default_paths = GoalTours(spec, goals, home)
    evaluation = default_paths if own_paths is None else CheckedReferences(own_paths, spec, box, home)
    speed = _round_digits(default_paths.speed()) if source.evaluation_speed is None else float(source.evaluation_speed)
    evaluation(speed)  # a path outside the limits is reported now, not after training
    if goal is None:
        scale = source.length_scale
        scale = _one_or_more(_round_digits(0.6 * spread)) if scale is None else _weights(scale)
        weight = _weights(source.weight)
        check_weights("length_scale", scale, spec.num_outputs, "tracked output", positive=True)
        check_weights("weight", weight, spec.num_outputs, "tracked output")
        goal = Track(scale, weight)
    return Task(
        spec=spec,
        cost=StepCost(spec, goal, _weights(source.change_weight), _weights(source.limit_weight)),
        sample_goals=goals,
        evaluation=evaluation,
        evaluation_speed=speed,
        home=home,
        trajectories=int(source.trajectories),
        stop_at_limits=is_inside(spec, first) if source.stop_at_limits is None else bool(source.stop_at_limits),
        adaptive_horizon=source.steps is None,
        unit=source.unit
        or error_unit(spec)
        or ("rad" if space == "output" and set(goal_entries) <= set(angles) else "m"),
    )


MAX_MEMORY = 1000
"""Past commands or measurements in a state: more than any dead time, and little enough to be computed with."""


def _check_kinds(source: GymnasiumTask) -> None:
    """Check the fields that are not numbers: what is wrong here would be noticed late, or never."""
    for field in ("place", "safe", "observe", "goals", "evaluation"):
        value = getattr(source, field)
        if value is not None and not callable(value):
            raise UserError(f"{field} is {value!r}, but must be a function.")
    for field in ("hardware", "stop_at_limits"):
        value = getattr(source, field)
        if not isinstance(value, bool | np.bool_) and not (value is None and field == "stop_at_limits"):
            raise UserError(f"{field} is {value!r}, but must be True or False.")
    for field in ("name", "unit"):
        value = getattr(source, field)
        if value is not None and not (isinstance(value, str) and value.strip() and value.isprintable()):
            raise UserError(f"{field} is {value!r}, but must be a text of at least one character, all printable.")
    for field, kind in (("sensors", Sensors), ("scales", Scales)):
        value = getattr(source, field)
        if value is not None and not isinstance(value, kind):
            raise UserError(f"{field} is {value!r}, but must be made with {kind.__name__}(…).")
    if not isinstance(source.angles, Sequence | np.ndarray) or isinstance(source.angles, str):
        raise UserError(f"angles is {source.angles!r}, but must list entries of the measurement, for example (0, 1).")
    for field in ("command_memory", "measurement_memory"):
        value = getattr(source, field)
        if isinstance(value, int | np.integer) and value > MAX_MEMORY:
            raise UserError(f"{field} is {value}, but must be at most {MAX_MEMORY}.")


def _check_plain_numbers(source: GymnasiumTask) -> None:
    """Check kinds of numbers, by field; those who use them check where they must lie."""
    for field in ("steps", "trajectories", "command_memory", "measurement_memory"):
        value = getattr(source, field)
        if field == "steps" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise UserError(f"{field} is {value!r}, but must be a whole number.")
    for field in ("period_s", "evaluation_speed"):
        value = getattr(source, field)
        if value is not None and not (_is_number(value) and 0 < value < math.inf):
            raise UserError(f"{field} is {value!r}, but must be a number above 0.")
    for field in ("length_scale", "weight", "change_weight", "limit_weight"):
        value = getattr(source, field)
        values: Any = value if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) else (value,)
        for one in values:
            if field == "length_scale":
                if one is not None and not (_is_number(one) and 0 < one < math.inf):
                    raise UserError(f"{field} is {value!r}, but must be a number above 0.")
            elif not (_is_number(one) and math.isfinite(float(one))):
                raise UserError(f"{field} is {value!r}, but must be a number.")
    if source.reference not in (None, "move", "hold"):
        raise UserError(f"reference is {source.reference!r}, but must be 'move' or 'hold'.")
    for field in ("preview", "hidden"):
        values = getattr(source, field)
        listed = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)
        if not listed or not all(isinstance(value, int | np.integer) for value in values):
            raise UserError(f"{field} is {values!r}, but must list whole numbers.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _command_range(source: GymnasiumTask, space: Any, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    from gymnasium.spaces import Box

    if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
        raise UserError(f"{name} has the action space {space}, but actions must be continuous (a Box of floats).")
    low, high = (np.asarray(v, float).reshape(-1) for v in (space.low, space.high))
    found = []
    for field, bound in (("command_low", low), ("command_high", high)):
        given = getattr(source, field)
        for i in np.flatnonzero(~np.isfinite(bound)) if given is None else ():
            raise UserError(
                f"{name} allows actions from {low[i]} to {high[i]} in channel {i}, but the range must be finite; give "
                "command_low and command_high."
            )
        values = tuple(bound.tolist()) if given is None else _numbers(field, given, len(low), "action channel")
        for i, value in enumerate(values):
            if not low[i] <= value <= high[i]:
                raise UserError(f"{field}[{i}] is {value}, but its action space allows {low[i]} to {high[i]}.")
        found.append(values)
    return found[0], found[1]


def _first_measurement(source: GymnasiumTask, env: Any, name: str) -> np.ndarray:
    from gymnasium.spaces import Box

    space = env.observation_space
    if source.observe is None and not (isinstance(space, Box) and len(space.shape) == 1):
        kind = f"an array of shape {space.shape}" if isinstance(space, Box) else f"a {type(space).__name__}"
        raise UserError(
            f"{name} observes {kind}, but a vector of numbers is needed; give observe, a function that makes one."
        )
    try:
        observation, _ = env.reset(seed=0)
    except (Exception, SystemExit) as error:
        raise UserError(f"{name} raised {type(error).__name__} in reset(): {' '.join(str(error).split())}.") from error
    return measurement(source.observe, observation)


def _period(source: GymnasiumTask, env: Any, name: str) -> float:
    period = source.period_s if source.period_s is not None else getattr(env.unwrapped, "dt", None)
    if period is None:
        raise UserError(f"{name} does not tell its control period; give period_s, in seconds.")
    own = getattr(env.unwrapped, "dt", None)
    period = float(period)
    if own is not None and _is_number(own) and not own / OTHER_PERIOD < period < own * OTHER_PERIOD:
        raise UserError(f"period_s is {period:g}, but the environment's dt is {own:g}; are both in seconds?")
    return period


def _own_goal(source: GymnasiumTask) -> AbstractGoal | None:
    """The goal that the user gives, in one of three ways; None where what is tracked follows its reference."""
    given = [field for field in ("goal", "residuals", "cost") if getattr(source, field) is not None]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} are both given, but only one can be what the robot shall do.")
    for field in ("residuals", "cost"):
        if field in given and not callable(getattr(source, field)):
            raise UserError(f"{field} is {getattr(source, field)!r}, but must be a function of x, u and r.")
    if given and (source.length_scale is not None or _weights(source.weight) != 1.0):
        raise UserError(
            "length_scale and weight belong to the default goal; give them in goal, as Track(scale, weight)."
        )
    if source.residuals is not None:
        return Residuals(source.residuals, follows=source.tracked is not None)
    if source.cost is not None:
        return Cost(source.cost)
    if source.goal is not None and not isinstance(source.goal, AbstractGoal):
        raise UserError(f"goal is {source.goal!r}, but must be one of firsthand.goals; give residuals or cost instead.")
    return source.goal


def _neutral(source: GymnasiumTask, low: tuple[float, ...], high: tuple[float, ...]) -> tuple[float, ...] | None:
    if source.neutral is None:
        return None
    values = _numbers("neutral", source.neutral, len(low), "command")
    for i, value in enumerate(values):
        if not low[i] <= value <= high[i]:
            raise UserError(f"neutral[{i}] is {value}, but the command's range is {low[i]} to {high[i]}.")
    return values


def _rate(
    source: GymnasiumTask,
    box: GoalBox,
    ranges: dict[int, tuple[float, float]],
    entries: tuple[int, ...],
    duration_s: float,
    *,
    holds: bool,
) -> tuple[float, ...]:
    """As given; for set-points, which jump, by default across its range in half a trajectory."""
    if source.rate is not None:
        return _numbers("rate", source.rate, len(entries), "goal coordinate")
    if not holds:
        raise UserError('rate is missing: how fast a reference may move, per goal coordinate; or reference="hold".')
    found = []
    for i, entry in enumerate(entries):
        low, high = ranges.get(entry, (box.low[i], box.high[i]))
        found.append(((high - low) or 1.0) / (0.5 * duration_s))
    return tuple(found)


def _weights(values: Numbers) -> float | tuple[float, ...]:
    found = np.asarray(values, float)
    return float(found) if found.ndim == 0 else tuple(found.tolist())


def _texts(field: str, texts: Any, size: int, of: str) -> tuple[str, ...]:
    if texts is None:
        return ()
    listed = isinstance(texts, Sequence) and not isinstance(texts, str) and all(isinstance(t, str) for t in texts)
    if not listed or len(texts) != size:
        raise UserError(f"{field} is {texts!r}, but must list {size} texts, one per {of}.")
    if field.endswith("names"):
        for text in texts:
            if not text.strip() or not text.isprintable():
                raise UserError(f"{field} has {text!r}, but a name must have at least one character, all printable.")
            if list(texts).count(text) > 1:
                raise UserError(f"{field} has {text!r} twice, but names must differ.")
    return tuple(texts)


def find_number(entry: Any, names: Sequence[str] | None) -> Any:
    """The number of an entry that is given by name; anything else as it is."""
    if not isinstance(entry, str) or isinstance(names, str) or names is None or entry not in names:
        return entry
    return list(names).index(entry)


def _entries(field: str, entries: Any, size: int, names: tuple[str, ...] = ()) -> tuple[int, ...]:
    if not isinstance(entries, Sequence | np.ndarray) or isinstance(entries, str):
        raise UserError(f"{field} is {entries!r}, but must list entries of the measurement, for example (0, 1).")
    entries = [find_number(entry, names) for entry in entries]
    for entry in entries:
        if isinstance(entry, str):
            known = f"names has {', '.join(map(repr, names))}" if names else "there are no names"
            raise UserError(f"{field} names entry {entry!r}, but {known}.")
        if not isinstance(entry, int | np.integer) or not 0 <= entry < size:
            raise UserError(f"{field} names entry {entry}, but the measurement has entries 0 to {size - 1}.")
    return tuple(int(entry) for entry in entries)


def _goal_box(source: GymnasiumTask, entries: tuple[int, ...], ranges: dict[int, tuple[float, float]]) -> GoalBox:
    sides = []
    for side, field in enumerate(("goal_low", "goal_high")):
        given = getattr(source, field)
        if given is not None:
            sides.append(_numbers(field, given, len(entries), "goal coordinate"))
            continue
        for entry in entries:
            if entry not in ranges:
                raise UserError(f"tracked names entry {entry}, which is not a position; give goal_low and goal_high.")
        sides.append(tuple(ranges[entry][side] for entry in entries))
    for i, (a, b) in enumerate(zip(*sides, strict=True)):
        if not (a < b or (a == b and source.reference == "hold")):
            raise UserError(f"goal_low[{i}] is {a}, but must be below goal_high[{i}], which is {b}.")
        least, most = ranges.get(entries[i], (-math.inf, math.inf))
        if not (least <= a and b <= most):
            raise UserError(f"goals of coordinate {i} lie between {a} and {b}, but its limits are {least} to {most}.")
    return GoalBox(*sides)


def _numbers(field: str, value: Any, size: int, of: str) -> tuple[float, ...]:
    try:
        kind, values = np.asarray(value).dtype.kind, np.asarray(value, float)
    except (TypeError, ValueError):
        raise UserError(f"{field} is {value!r}, but must be a number, or {size} of them, one per {of}.") from None
    if kind in "USb":  # "-0.25" could be read as a number; more likely a file was read, and not looked at
        raise UserError(f"{field} is {value!r}, but must be a number, or {size} of them, one per {of}, not text.")
    if values.ndim > 1 or (values.ndim == 1 and len(values) != size):
        raise UserError(f"{field} is {value!r}, but must be a number, or {size} of them, one per {of}.")
    if not np.isfinite(values).all():
        raise UserError(f"{field} is {value!r}, but must be finite.")
    return tuple(np.broadcast_to(values, (size,)).tolist())


def _names(size: int, positions: tuple[int, ...], velocities: tuple[int, ...]) -> tuple[str, ...]:
    names = [f"measured {i}" for i in range(size)]
    for i, entry in enumerate(positions):
        names[entry] = f"position {i}"
    for i, entry in enumerate(velocities):
        names[entry] = f"velocity {i}"
    return tuple(names)


def _round_digits(value: Any) -> Any:
    """Two digits: the same on every machine, and short in a file. One number, or an array of them."""
    if isinstance(value, np.ndarray) and value.ndim:
        return np.asarray([_round_digits(float(one)) for one in value])
    return float(f"{value:.2g}")


def _one_or_more(values: Any) -> float | tuple[float, ...]:
    return tuple(values.tolist()) if isinstance(values, np.ndarray) and values.ndim else float(values)


def _sizes(spec: ControlSpec, box: GoalBox) -> tuple[Any, Any]:
    """How far goals are spread in the tracked output, and how far references move within the preview (both RMS).

    One number each; arrays with one per output where the outputs have different units.
    """
    if spec.reference.profile == "hold":
        # Uniform set-points; where there is but one, a share of what is known of each output.
        known = {
            e: spec.limits.position_high[i] - spec.limits.position_low[i] for i, e in enumerate(spec.layout.position)
        }
        indices = spec.kinematics.indices if isinstance(spec.kinematics, SelectedOutput) else spec.layout.position
        width = np.asarray(box.high) - np.asarray(box.low)
        width = np.where(width > 0, width, [0.25 * known.get(entry, 4.0) for entry in indices])
        each = width / np.sqrt(12.0)
        if isinstance(spec.kinematics, SelectedOutput):
            spread = each if spec.has_mixed_units else float(np.sqrt(np.sum(each**2)))
            return spread, spread
        if not (np.asarray(box.high) > np.asarray(box.low)).all():
            box = GoalBox(spec.limits.position_low, spec.limits.position_high)
    rng = np.random.Generator(np.random.Philox(key=0))
    measured = np.asarray(spec.scales.measured_center, float)
    for i, entry in enumerate(spec.layout.position):
        measured[entry] = (spec.limits.position_low[i] + spec.limits.position_high[i]) / 2
    entries = list(spec.layout.position)
    if isinstance(spec.kinematics, SelectedOutput):
        entries = list(spec.kinematics.indices)
        measured[entries] = (np.asarray(box.low) + np.asarray(box.high)) / 2
    spec = replace(spec, reference=replace(spec.reference, profile="move"))
    goals, moves, ends = BoxGoals(spec, box)(rng, measured, 200), [], []
    mixed = spec.has_mixed_units
    for goal in goals:
        points = build_reference(spec, measured, goal)
        ahead = spec.preview[-1]
        way = (points[ahead:] - points[:-ahead]) ** 2
        moves.append(np.mean(way, axis=0) if mixed else np.mean(np.sum(way, axis=1)))
        ends.append(points[-1])
        measured[entries] = goal
    spread, moved = np.var(ends, axis=0), np.mean(moves, axis=0)
    if mixed:
        return np.sqrt(spread), np.sqrt(moved)
    return float(np.sqrt(np.sum(spread))), float(np.sqrt(moved))


def _default_scales(spec: ControlSpec, goal_entries: tuple[int, ...], box: GoalBox, error: Any, moved: Any) -> Scales:
    """Order one inside the limits; 1 for entries of which nothing is known."""
    size = spec.layout.num_measured
    center, scale, change = np.zeros(size), np.ones(size), np.full(size, 0.1)
    duration, rate = spec.reference.steps * spec.period_s, spec.reference.rate_high
    for i, entry in enumerate(goal_entries):
        center[entry], scale[entry] = (box.low[i] + box.high[i]) / 2, (box.high[i] - box.low[i]) / 2 or 1.0
        change[entry] = rate[i] * spec.period_s
    for i, entry in enumerate(spec.layout.position):
        low, high = spec.limits.position_low[i], spec.limits.position_high[i]
        center[entry], scale[entry] = (low + high) / 2, (high - low) / 2
        speed = (high - low) / 2 * PEAK_OF_QUINTIC / duration
        if entry in goal_entries:
            speed = rate[goal_entries.index(entry)]
        change[entry] = speed * spec.period_s
        if spec.layout.velocity:
            velocity = spec.layout.velocity[i]
            scale[velocity], change[velocity] = speed, 0.1 * speed
    return Scales(
        tuple(center.tolist()),
        tuple(scale.tolist()),
        tuple(change.tolist()),
        _one_or_more(_round_digits(error)),
        _one_or_more(_round_digits(moved)),
    )
