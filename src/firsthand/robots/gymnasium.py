"""Any Gymnasium environment as a robot: the user says what the observation holds, the rest is derived."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

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
from ..tasks.box import BoxGoals, BoxReferences, CheckedGoals, CheckedReferences, GoalBox
from ..tasks.cost import tracking_cost
from .environment import GymnasiumRobot, environment_name
from .limits import is_inside

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
    positions: Sequence[int]
    """Which entries of the measurement are positions."""
    position_low: Numbers
    """Lower limit per position."""
    position_high: Numbers
    """Upper limit per position."""
    rate: Numbers
    """Highest speed that a reference may ask for, per goal coordinate, in both directions."""
    velocities: Sequence[int] = ()
    """Which entries are the velocities of these positions, in the same order; empty if none are measured."""
    tracked: Sequence[int] | PlanarChain | SerialChain | None = None
    """What shall follow references: entries of the measurement (by default the positions), or the tip of an arm."""
    observe: Callable[[Any], Any] | None = None
    """From an observation to the measurement, a vector; by default the observation itself."""
    angles: Sequence[int] = ()
    """Entries that are angles and jump at ±π: they are followed across the jump."""
    name: str | None = None
    """What the robot is called; by default the environment's name."""
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
    """From a speed to paths by name, `(steps, outputs)` each; by default a line and a loop in the inner half."""
    evaluation_speed: float | None = None
    """Speed along the evaluation paths; by default about half of what `rate` allows."""
    place: Callable[[Any, np.ndarray], Any] | None = None
    """Puts the environment at rest at these positions and returns the observation there; evaluation starts so."""
    length_scale: float | None = None
    """An error that costs 1; by default from the spread of the goals."""
    change_weight: float = 0.005
    """Weight of the squared change of command in the cost."""
    limit_weight: float = 0.1
    """Weight of the soft position limits in the cost."""
    hidden: Sequence[int] = (128, 128)
    """Hidden layers of the policy."""
    scales: Scales | None = None
    """What the policy's inputs are divided by; by default from limits and rates."""
    unit: str | None = None
    """Unit of what is tracked, for tables and figures; by default rad where only `angles` are tracked, otherwise m."""
    sensors: Sensors | None = None
    """Simulated sensors around what is measured: noise, lag, delay, outliers; errors are then those of the truth."""
    stop_at_limits: bool | None = None
    """Whether a motion ends where a position is about to leave its limits; by default where a reset begins inside."""
    safe: Callable[[np.ndarray], Any] | None = None
    """From the measurement to a command that brings the robot back after it was stopped at a limit; else neutral."""
    hardware: bool = False
    """Whether the environment moves something real: then it is neutral after each episode, and only training and
    `firsthand evaluate` move it."""

    def make_task(self) -> Task:
        """The task, derived from what was given and from the environment's spaces."""
        return self._task

    def make_robot(self, task: Task, *, payload_kg: float, seed: int) -> GymnasiumRobot:
        """The environment, made when it is first needed."""
        if payload_kg:
            raise UserError(f"payload is {payload_kg} kg, but {task.name} cannot carry one; leave it out.")
        return GymnasiumRobot(
            _Reader(self), task, seed=seed, hardware=self.hardware, sensors=self.sensors, safe=self.safe
        )

    @cached_property
    def _task(self) -> Task:
        try:
            return _derive(self)
        except SpecError as error:
            raise UserError(f"{error}.") from None


class _Reader:
    """How the driver makes and reads the environment."""

    def __init__(self, source: GymnasiumTask) -> None:
        self.source = source
        self.angles = tuple(source.angles)

    def make(self) -> Any:
        """A new environment without Gymnasium's time limit."""
        try:
            return without_time_limit(self.source.env())
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"env() cannot make the environment: {type(error).__name__}: {' '.join(str(error).split())}."
            ) from error

    def measure(self, observation: Any) -> np.ndarray:
        """The measurement in an observation."""
        return measurement(self.source.observe, observation)

    def place(self, env: Any, position: np.ndarray) -> Any | None:
        """What the user's hook observes, or None without one."""
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
    except Exception as error:
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
    reader = _Reader(source)
    _check_plain_numbers(source)
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
    positions = _entries("positions", source.positions, size)
    velocities = _entries("velocities", source.velocities, size)
    _entries("angles", source.angles, size)
    if not positions:
        raise UserError("positions is empty, but at least one entry of the measurement must be a position.")
    position_low = _numbers("position_low", source.position_low, len(positions), "position")
    position_high = _numbers("position_high", source.position_high, len(positions), "position")
    if isinstance(source.tracked, PlanarChain | SerialChain):
        kinematics, space, goal_entries = source.tracked, "position", positions
    else:
        goal_entries = positions if source.tracked is None else _entries("tracked", source.tracked, size)
        kinematics, space = SelectedOutput(goal_entries), "output"
    limits = Limits(low, high, position_low, position_high)
    ranges = {entry: (position_low[i], position_high[i]) for i, entry in enumerate(positions)}
    box = _goal_box(source, goal_entries, ranges)
    rate = _numbers("rate", source.rate, len(goal_entries), "goal coordinate")
    spec = ControlSpec(
        robot=source.name or name.removeprefix("The environment "),
        period_s=period_s,
        layout=StateLayout(
            measured=_names(size, positions, velocities),
            position=positions,
            velocity=velocities,
            commands=tuple(f"command {i}" for i in range(len(low))),
            command_memory=int(source.command_memory),
            measurement_memory=int(source.measurement_memory),
        ),
        kinematics=kinematics,
        preview=tuple(int(ahead) for ahead in source.preview),
        scales=source.scales or Scales((0.0,) * size, (1.0,) * size, (1.0,) * size, 1.0, 1.0),
        limits=limits,
        reference=ReferenceSpec(
            space, int(DEFAULT_STEPS if source.steps is None else source.steps), tuple(-r for r in rate), rate
        ),
        policy=PolicyShape(tuple(int(width) for width in source.hidden)),
    )
    spread, moved = _sizes(spec, box)
    if source.scales is None:
        spec = replace(spec, scales=_default_scales(spec, goal_entries, box, 0.2 * spread, moved))
    home = tuple((a + b) / 2 for a, b in zip(position_low, position_high, strict=True))
    goals = BoxGoals(spec, box) if source.goals is None else CheckedGoals(source.goals, box)
    default_paths = BoxReferences(spec, box, home)
    own = source.evaluation
    evaluation = default_paths if own is None else CheckedReferences(own, spec, box, home)
    speed = _rounded(default_paths.speed()) if source.evaluation_speed is None else float(source.evaluation_speed)
    evaluation(speed)  # a path outside the limits is reported now, not after training
    length_scale = _rounded(0.6 * spread) if source.length_scale is None else float(source.length_scale)
    return Task(
        spec=spec,
        cost=tracking_cost(
            spec, length_scale=length_scale, change_weight=source.change_weight, limit_weight=source.limit_weight
        ),
        sample_goals=goals,
        evaluation=evaluation,
        evaluation_speed=speed,
        home=home,
        trajectories=int(source.trajectories),
        stop_at_limits=is_inside(spec, first) if source.stop_at_limits is None else bool(source.stop_at_limits),
        adaptive_horizon=source.steps is None,
        unit=source.unit or ("rad" if space == "output" and set(goal_entries) <= set(source.angles) else "m"),
    )


def _check_plain_numbers(source: GymnasiumTask) -> None:
    """Check kinds of numbers, by field; those who use them check where they must lie."""
    for field in ("steps", "trajectories", "command_memory", "measurement_memory"):
        value = getattr(source, field)
        if field == "steps" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise UserError(f"{field} is {value!r}, but must be a whole number.")
    for field in ("period_s", "evaluation_speed", "length_scale"):
        value = getattr(source, field)
        if value is not None and not (_is_number(value) and 0 < value < math.inf):
            raise UserError(f"{field} is {value!r}, but must be a number above 0.")
    for field in ("change_weight", "limit_weight"):
        value = getattr(source, field)
        if not (_is_number(value) and math.isfinite(value)):
            raise UserError(f"{field} is {value!r}, but must be a number.")
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
                raise UserError(f"{field}[{i}] is {value}, but {name} takes {low[i]} to {high[i]} in this channel.")
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
    except Exception as error:
        raise UserError(f"{name} raised {type(error).__name__} in reset(): {' '.join(str(error).split())}.") from error
    return measurement(source.observe, observation)


def _period(source: GymnasiumTask, env: Any, name: str) -> float:
    period = source.period_s if source.period_s is not None else getattr(env.unwrapped, "dt", None)
    if period is None:
        raise UserError(f"{name} does not tell its control period; give period_s, in seconds.")
    return float(period)


def _entries(field: str, entries: Any, size: int) -> tuple[int, ...]:
    if not isinstance(entries, Sequence | np.ndarray) or isinstance(entries, str):
        raise UserError(f"{field} is {entries!r}, but must list entries of the measurement, for example (0, 1).")
    for entry in entries:
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
                raise UserError(f"tracked names entry {entry}, which is no position; give goal_low and goal_high.")
        sides.append(tuple(ranges[entry][side] for entry in entries))
    for i, (a, b) in enumerate(zip(*sides, strict=True)):
        if not a < b:
            raise UserError(f"goal_low[{i}] is {a}, but must be below goal_high[{i}], which is {b}.")
        least, most = ranges.get(entries[i], (-math.inf, math.inf))
        if not (least <= a and b <= most):
            raise UserError(f"goals of coordinate {i} lie between {a} and {b}, but its limits are {least} to {most}.")
    return GoalBox(*sides)


def _numbers(field: str, value: Any, size: int, of: str) -> tuple[float, ...]:
    try:
        values = np.asarray(value, float)
    except (TypeError, ValueError):
        raise UserError(f"{field} is {value!r}, but must be a number, or {size} of them, one per {of}.") from None
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


def _rounded(value: float) -> float:
    """Two digits: the same on every machine, and short in a file."""
    return float(f"{value:.2g}")


def _sizes(spec: ControlSpec, box: GoalBox) -> tuple[float, float]:
    """How far goals are spread in the tracked output, and how far references move within the preview (both RMS)."""
    rng = np.random.Generator(np.random.Philox(key=0))
    measured = np.asarray(spec.scales.measured_center, float)
    for i, entry in enumerate(spec.layout.position):
        measured[entry] = (spec.limits.position_low[i] + spec.limits.position_high[i]) / 2
    entries = list(spec.layout.position)
    if isinstance(spec.kinematics, SelectedOutput):
        entries = list(spec.kinematics.indices)
        measured[entries] = (np.asarray(box.low) + np.asarray(box.high)) / 2
    goals, moves, ends = BoxGoals(spec, box)(rng, measured, 200), [], []
    for goal in goals:
        points = build_reference(spec, measured, goal)
        ahead = spec.preview[-1]
        moves.append(np.mean(np.sum((points[ahead:] - points[:-ahead]) ** 2, axis=1)))
        ends.append(points[-1])
        measured[entries] = goal
    return float(np.sqrt(np.sum(np.var(ends, axis=0)))), float(np.sqrt(np.mean(moves)))


def _default_scales(
    spec: ControlSpec, goal_entries: tuple[int, ...], box: GoalBox, error: float, moved: float
) -> Scales:
    """Order one inside the limits; 1 for entries of which nothing is known."""
    size = spec.layout.num_measured
    center, scale, change = np.zeros(size), np.ones(size), np.full(size, 0.1)
    duration, rate = spec.reference.steps * spec.period_s, spec.reference.rate_high
    for i, entry in enumerate(goal_entries):
        center[entry], scale[entry] = (box.low[i] + box.high[i]) / 2, (box.high[i] - box.low[i]) / 2
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
        tuple(center.tolist()), tuple(scale.tolist()), tuple(change.tolist()), _rounded(error), _rounded(moved)
    )
