"""Checks of a task before its robot moves for the first time: errors and warnings. Nothing here moves a robot."""

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum

import jax
import jax.numpy as jnp
import numpy as np

from firsthand_onboard import ControlSpec, Limits, SelectedOutput, SerialChain
from firsthand_onboard.features import PEAK_OF_QUINTIC, build_reference, reachable_fraction
from firsthand_onboard.kinematics import chain_jacobian, tracked_output

from ..errors import UserError
from ..tasks.base import Task
from ..units import duration, unit_of
from .base import AbstractRobot, neutral
from .registry import NamedRobot

POSES = 32
"""Random places at which kinematics and cost are looked at."""
STILL = 1e-9
"""A joint that moves the output by less per unit of its own does not move it."""
SINGULAR = 0.02
"""Share of the largest singular value of the Jacobian below which the tip can hardly move in some direction."""
IDLE_RATE = 50.0
"""A rate this many times the speed at which a reference crosses the whole range limits nothing."""
SLOW_PERIOD_S, FAST_PERIOD_S = 10.0, 0.002
SHORT_TRAJECTORY_S, LONG_TRAJECTORY_S = 0.5, 600.0
LONG_STEPS = 200
GUESSED_NAMES = ("position ", "velocity ", "measured ", "command ")
"""Names of entries that were not given one."""
OTHER_UNIT = 5.0
"""Ranges outside its limits beyond which a position is measured in another unit."""
OTHER_PERIOD = 0.01
"""Difference, as a share, beyond which the period is not the environment's own."""
WIDE_RANGES = {"m": 100.0, "rad": 20 * math.pi}
"""Ranges of a position that are rare in its unit: limits in millimetres or degrees, declared as metres or radians."""
MISPLACED = 0.02
"""Share of its range that a position may be off after `place`."""
WIDE_TURN = 2 * math.pi + 1e-3
GOALS = 200


class Verdict(Enum):
    """How a row of the table is judged."""

    OK = "ok"
    NOTE = "note"
    """Not looked at, or not known yet."""
    DOUBTFUL = "doubtful"
    """Would run; somebody should look at it."""
    WRONG = "wrong"
    """Must be put right before the robot moves."""


@dataclass(frozen=True)
class Finding:
    """One row of the table."""

    what: str
    """The subject of the check."""
    verdict: Verdict
    text: str
    """The result; for a warning or an error, with what would be right."""


def check_robot(found: NamedRobot) -> list[Finding]:
    """Every check, in the order of a first look at a robot."""
    task = found.task
    rows = [*_describe(task), *_look_at_robot(found), *_names(task), _neutral(task.spec), *_limits(task)]
    for what, check in (("tip", _tip), ("goals", _goals), ("evaluation", _evaluation), ("cost", _cost)):
        rows.extend(_run_check(what, check, task))
    return [*rows, *_unknown(task)]


def _run_check(what: str, check: Callable[[Task], list[Finding]], task: Task) -> list[Finding]:
    """A check that fails is a finding, whatever it raises: the table goes on."""
    try:
        return check(task)
    except Exception as error:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return [Finding(what, Verdict.WRONG, f"{kind}{' '.join(str(error).split())}")]


def _describe(task: Task) -> list[Finding]:
    spec = task.spec
    layout, seconds = spec.layout, task.steps * spec.period_s
    shape = (
        f"{layout.num_measured} measured (positions {len(layout.position)}, velocities {len(layout.velocity)}), "
        f"{layout.num_commands} commanded, {spec.num_outputs} tracked"
    )
    rows = [Finding("robot", Verdict.OK, shape)]
    text, verdict = f"{spec.period_s:g} s", Verdict.OK
    if spec.period_s < FAST_PERIOD_S:
        text, verdict = f"{text}: faster than a Python loop can keep; is it in seconds?", Verdict.DOUBTFUL
    if spec.period_s > SLOW_PERIOD_S:
        text, verdict = f"{text}: right for a process of minutes; is it in seconds?", Verdict.DOUBTFUL
    rows.append(Finding("period", verdict, text))
    text, verdict = f"{task.trajectories} trajectories of {task.steps} steps, {duration(seconds)} each", Verdict.OK
    longest = max(LONG_TRAJECTORY_S, LONG_STEPS * spec.period_s)  # a slow period has been asked about already
    if not SHORT_TRAJECTORY_S <= seconds <= longest:
        text, verdict = f"{text}: a trajectory lasts many times the dead time, mostly some seconds", Verdict.DOUBTFUL
    rows.append(Finding("episode", verdict, f"{text}; an episode is {duration(task.episode_s)}"))
    if spec.preview[-1] > task.steps:
        text = f"looks {spec.preview[-1]} steps ahead, but a trajectory has {task.steps}"
        rows.append(Finding("preview", Verdict.DOUBTFUL, text))
    return rows


def _look_at_robot(found: NamedRobot) -> list[Finding]:
    """Where the robot is, as long as it is a simulated one."""
    limits, layout = found.task.spec.limits, found.task.spec.layout
    try:
        robot = found.make()
        if robot.hardware:
            return [Finding("start", Verdict.NOTE, "a real robot: not looked at; it must stand inside the limits")]
        with closing(robot):
            measured = np.asarray(robot.measured(), float)
            more = [*_stand_in(robot), *_own_period(robot), *_place(robot)]
    except UserError as error:
        return [Finding("start", Verdict.WRONG, str(error))]
    if not np.isfinite(measured).all():
        bad = [layout.measured[i] for i in np.flatnonzero(~np.isfinite(measured))]
        return [Finding("start", Verdict.WRONG, f"{', '.join(bad)} measured as NaN or infinite")]
    position = measured[list(layout.position)]
    outside = [
        f"{layout.measured[entry]} is {position[i]:.4g}, outside {limits.position_low[i]:g} to "
        f"{limits.position_high[i]:g}"
        for i, entry in enumerate(layout.position)
        if not limits.position_low[i] <= position[i] <= limits.position_high[i]
    ]
    if outside:
        advice = "start inside, or widen the limits: otherwise motions do not end at them"
        if (_ranges_away(position, limits) > OTHER_UNIT).any():
            advice = "are limits and measurements in the same unit?"
        return [Finding("start", Verdict.DOUBTFUL, f"{'; '.join(outside)}; {advice}"), *more]
    return [Finding("start", Verdict.OK, "stands inside its limits"), *more]


def _stand_in(robot: AbstractRobot) -> list[Finding]:
    """Whether it is still the starting file's simple simulation that would learn."""
    if not robot.stand_in:
        return []
    text = "simulated axes whose speed follows their command, not your robot; connect() is yours to fill in"
    return [Finding("stand-in", Verdict.NOTE, text)]


def _own_period(robot: AbstractRobot) -> list[Finding]:
    """Whether the control period is the environment's."""
    period, own = robot.task.spec.period_s, robot.own_period_s
    if own is None or abs(period - own) <= OTHER_PERIOD * own:
        return []
    text = f"period_s is {period:g} s, but the environment's dt is {own:g} s; does a step take {period:g} s?"
    return [Finding("period", Verdict.DOUBTFUL, text)]


def _place(robot: AbstractRobot) -> list[Finding]:
    """Whether `place` puts it where evaluation begins: tried once at home and once where a reference starts."""
    task, spec = robot.task, robot.task.spec
    starts = [np.asarray(task.home, float)]
    with contextlib.suppress(Exception):  # what is wrong with the evaluation has a row of its own
        starts += [np.asarray(reference.start, float) for reference in task.evaluation(task.evaluation_speed)[:1]]
    width = np.asarray(spec.limits.position_high) - np.asarray(spec.limits.position_low)
    for start in starts:
        try:
            measured = robot.stand_at(start)
        except UserError as error:
            return [Finding("place", Verdict.WRONG, str(error))]
        if measured is None:
            return []
        found = np.asarray(measured, float)[list(spec.layout.position)]
        off = np.flatnonzero(~(np.abs(found - start) <= MISPLACED * width))
        off = [i for i in off if _is_placed(spec, spec.layout.position[i])]
        if off:
            name = spec.layout.measured[spec.layout.position[off[0]]]
            text = f"asked to put {name} at {start[off[0]]:.4g}, it leaves it at {found[off[0]]:.4g}"
            return [Finding("place", Verdict.WRONG, text)]
    return [Finding("place", Verdict.OK, "puts the robot at home and where a reference starts")]


def _is_placed(spec: ControlSpec, entry: int) -> bool:
    """Whether evaluation depends on where `place` puts this position: others may follow from those that are tracked."""
    tracked = spec.kinematics.indices if isinstance(spec.kinematics, SelectedOutput) else ()
    return entry in tracked or not set(tracked) & set(spec.layout.position)


def _ranges_away(position: np.ndarray, limits: Limits) -> np.ndarray:
    """How far each position is outside its limits, in ranges."""
    low, high = np.asarray(limits.position_low), np.asarray(limits.position_high)
    return np.maximum(low - position, position - high) / (high - low)


def _names(task: Task) -> list[Finding]:
    """Names and units: a robot runs without; people, and logs from elsewhere, do better with them."""
    layout = task.spec.layout
    guessed = [n for n in (*layout.measured, *layout.commands) if n.startswith(GUESSED_NAMES) and n[-1:].isdigit()]
    if guessed:
        text = f"{len(guessed)} of {len(layout.measured) + len(layout.commands)} have no name of their own: "
        rows = [Finding("names", Verdict.NOTE, f"{text}{_first(guessed)}; tables are easier with names")]
    else:
        rows = [Finding("names", Verdict.OK, f"{_first(layout.measured)}; {_first(layout.commands)}")]
    missing = [
        what
        for what, units in (("measured", layout.measured_units), ("command", layout.command_units))
        if not any(units)
    ]
    if missing:
        text = f"{' and '.join(missing)} units are not declared; what is tracked is shown in {unit_of(task.unit).shown}"
        rows.append(Finding("units", Verdict.NOTE, f"{text} (another: unit=)"))
    else:
        measured, commands = (
            ", ".join(dict.fromkeys(unit or "none" for unit in units))
            for units in (layout.measured_units, layout.command_units)
        )
        rows.append(Finding("units", Verdict.OK, f"measured {measured}; commands {commands}"))
    return rows


def _first(names: Sequence[str], count: int = 3) -> str:
    return ", ".join(names[:count]) + (" …" if len(names) > count else "")


def _neutral(spec: ControlSpec) -> Finding:
    values, limits = neutral(spec).tolist(), spec.limits
    shown = ", ".join(f"{value:g}" for value in values)
    if limits.command_neutral is not None:
        return Finding("neutral", Verdict.OK, f"{shown}, declared")
    crooked = [
        name
        for name, low, high in zip(spec.layout.commands, limits.command_low, limits.command_high, strict=True)
        if abs(low + high) > 1e-3 * (high - low)
    ]
    if crooked:
        return Finding(
            "neutral",
            Verdict.DOUBTFUL,
            f"not declared, so the middle of the range: {shown}; is the robot left alone there ({', '.join(crooked)})?",
        )
    return Finding("neutral", Verdict.OK, f"{shown}, the middle of the range")


def _limits(task: Task) -> list[Finding]:
    spec, rows = task.spec, []
    layout, limits = spec.layout, spec.limits
    names = [layout.measured[entry] for entry in layout.position]
    shown = ", ".join(
        f"{name} {low:.4g} to {high:.4g}"
        for name, low, high in zip(names, limits.position_low, limits.position_high, strict=True)
    )
    wide = [
        name
        for i, name in enumerate(names)
        if limits.position_high[i] - limits.position_low[i] > WIDE_TURN
        and not isinstance(spec.kinematics, SelectedOutput)
        and spec.kinematics.joints[i].kind == "revolute"
    ]
    huge = [
        f"{name} spans {high - low:.4g} {unit}"
        for name, unit, low, high in zip(
            names,
            [layout.measured_units[entry] if layout.measured_units else "" for entry in layout.position],
            limits.position_low,
            limits.position_high,
            strict=True,
        )
        if high - low > WIDE_RANGES.get(unit, math.inf)
    ]
    if huge:
        text = f"{'; '.join(huge)}; are limits and rate in the unit that is declared?"
        rows.append(Finding("limits", Verdict.DOUBTFUL, text))
    elif wide:
        rows.append(Finding("limits", Verdict.DOUBTFUL, f"{', '.join(wide)} may turn more than once around; {shown}"))
    else:
        rows.append(Finding("limits", Verdict.OK, shown))
    home = [
        f"{name} {value:.4g}"
        for name, value, low, high in zip(names, task.home, limits.position_low, limits.position_high, strict=True)
        if not low <= value <= high
    ]
    if home:
        rows.append(Finding("home", Verdict.WRONG, f"outside the limits: {', '.join(home)}"))
    return rows


def _places(task: Task) -> np.ndarray:
    low, high = np.asarray(task.spec.limits.position_low), np.asarray(task.spec.limits.position_high)
    return np.concatenate([[task.home], np.random.default_rng(0).uniform(low, high, (POSES, len(low)))])


def _tip(task: Task) -> list[Finding]:
    """Whether every joint moves the tip, and the tip can move every way."""
    chain, layout = task.spec.kinematics, task.spec.layout
    if isinstance(chain, SelectedOutput):
        tracked = [layout.measured[i] for i in chain.indices]
        return [Finding("tracked", Verdict.OK, f"measured: {', '.join(tracked)}")]
    jacobians = np.stack([chain_jacobian(chain, place) for place in _places(task)])
    moved = np.abs(jacobians).max(axis=(0, 1))
    idle = [layout.measured[entry] for entry, most in zip(layout.position, moved, strict=True) if most < STILL]
    if len(idle) == len(layout.position):
        return [Finding("tip", Verdict.WRONG, "no joint moves it; name another tip")]
    rows = []
    if idle:
        advice = "track the orientation, too (lever=0.1)" if isinstance(chain, SerialChain) and not chain.lever else ""
        rows.append(
            Finding(
                "tip",
                Verdict.DOUBTFUL,
                f"{', '.join(idle)} does not move it and is left to drift; " + (advice or "leave that joint out"),
            )
        )
    sizes = np.linalg.svd(jacobians, compute_uv=False)
    weak = sizes[:, -1] < SINGULAR * sizes[:, 0] if sizes.shape[1] == task.spec.num_outputs else np.ones(1, bool)
    if len(layout.position) < task.spec.num_outputs:
        text = f"{len(layout.position)} joints cannot move {task.spec.num_outputs} outputs independently"
        rows.append(Finding("tip", Verdict.DOUBTFUL, f"{text}; goals are poses of the joints, so it can be followed"))
    elif weak[0]:
        rows.append(
            Finding("tip", Verdict.DOUBTFUL, "at home the arm is stretched or folded: one direction is hardly possible")
        )
    if not rows:
        where = f"singular at {weak.mean():.0%} of random places" if weak.any() else "nowhere singular"
        rows.append(Finding("tip", Verdict.OK, f"every joint moves it; {where}"))
    if isinstance(chain, SerialChain):
        rows.append(Finding("collisions", Verdict.NOTE, "self-collision and the floor are not checked"))
    return rows


def _goals(task: Task) -> list[Finding]:
    """Goals as training will draw them, from home on."""
    spec = task.spec
    measured = _at(spec, np.asarray(task.home))
    goals = np.asarray(task.sample_goals(np.random.default_rng(0), measured, GOALS), float)
    if goals.shape != (GOALS, spec.goal_size):
        text = f"the sampler returned shape {goals.shape}, but must return {(GOALS, spec.goal_size)}"
        return [Finding("goals", Verdict.WRONG, text)]
    if not np.isfinite(goals).all():
        return [Finding("goals", Verdict.WRONG, "the sampler returned NaN or infinite goals")]
    if spec.reference.space == "position":
        low, high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
        slack = 1e-6 * (high - low)
        bad = ((goals < low - slack) | (goals > high + slack)).any(axis=0)
        if bad.any():
            names = ", ".join(spec.layout.measured[spec.layout.position[i]] for i in np.flatnonzero(bad))
            return [Finding("goals", Verdict.WRONG, f"some lie outside the limits of {names}")]
    shortened, lowest, ends, fastest = [], math.inf, [], 0.0
    for goal in goals:
        start = measured[list(spec.layout.position)] if spec.reference.space == "position" else None
        here = tracked_output(spec, measured) if start is None else start
        shortened.append(float(reachable_fraction(spec, here, goal)) < 0.999)
        points = np.asarray(build_reference(spec, measured, goal))
        if not np.isfinite(points).all():
            return [Finding("goals", Verdict.WRONG, "a reference to one of them is NaN or infinite")]
        ends.append(points[-1])
        steps = np.linalg.norm(np.diff(points[:, : min(3, points.shape[1])], axis=0), axis=1)
        fastest = max(fastest, float(steps.max()) / spec.period_s)
        if isinstance(spec.kinematics, SerialChain):
            lowest = min(lowest, float(points[:, 2].min()))
        if spec.reference.space == "position":
            measured = _at(spec, goal)
        elif isinstance(spec.kinematics, SelectedOutput):  # the next one begins where this one ends, as in training
            measured[list(spec.kinematics.indices)] = points[-1]
    unit = unit_of(task.unit)
    more = _rate(spec, goals)
    spread = float(np.sqrt(np.sum(np.var(ends, axis=0))))
    text = f"{GOALS} drawn: spread {unit.with_unit(spread)}, references up to {unit.with_unit(fastest)}/s"
    rows = [Finding("goals", Verdict.OK, text)]
    if not spread > 1e-9 and spec.reference.profile == "hold":
        rows = [Finding("goals", Verdict.OK, f"one set-point: {', '.join(f'{value:.4g}' for value in ends[0])}")]
    elif not spread > 1e-9:
        rows = [Finding("goals", Verdict.DOUBTFUL, "all are the same: nothing is learned about moving")]
    elif np.mean(shortened) > 0.5:
        rows = [
            Finding(
                "goals",
                Verdict.DOUBTFUL,
                f"{np.mean(shortened):.0%} are too far at this rate and come closer; {text}",
            )
        ]
    if lowest < 0:
        more.append(
            Finding("floor", Verdict.DOUBTFUL, f"references go down to z = {lowest:.2f} m in the frame of the base")
        )
    return [*rows, *more]


def _rate(spec: ControlSpec, goals: np.ndarray) -> list[Finding]:
    """Whether the rate limits anything: one in another unit, or a number that stands for "any", hides a mistake."""
    if spec.reference.profile == "hold":
        return []
    fastest = PEAK_OF_QUINTIC * np.ptp(goals, axis=0) / (spec.reference.steps * spec.period_s)
    idle = np.flatnonzero(np.asarray(spec.reference.rate_high) > IDLE_RATE * fastest)
    if not len(idle) or not fastest[idle[0]] > 0:
        return []
    rate, most = spec.reference.rate_high[idle[0]], fastest[idle[0]]
    text = f"rate is {rate:g}, but no reference needs more than {most:.2g}; is it in the unit of the goals per second?"
    return [Finding("rate", Verdict.DOUBTFUL, text)]


def _at(spec: ControlSpec, position: np.ndarray) -> np.ndarray:
    measured = np.asarray(spec.scales.measured_center, float).copy()
    measured[list(spec.layout.position)] = position
    return measured


def _evaluation(task: Task) -> list[Finding]:
    references = task.evaluation(task.evaluation_speed)
    low, high = np.asarray(task.spec.limits.position_low), np.asarray(task.spec.limits.position_high)
    slack = 1e-3 * (high - low)
    for reference in references:
        if not np.isfinite(reference.points).all():
            return [Finding("evaluation", Verdict.WRONG, f"the path {reference.name!r} is NaN or infinite somewhere")]
        start = np.asarray(reference.start, float)
        if ((start < low - slack) | (start > high + slack)).any():
            return [Finding("evaluation", Verdict.WRONG, f"the path {reference.name!r} starts outside the limits")]
    shown = ", ".join(f"{r.name} {duration(len(r.points) * task.spec.period_s)}" for r in references)
    return [Finding("evaluation", Verdict.OK, shown)]


def _cost(task: Task) -> list[Finding]:
    """The cost and its derivatives at random states of the robot, and exactly on the reference."""
    spec, rng = task.spec, np.random.default_rng(0)
    layout = spec.layout
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    measured = np.stack([_at(spec, place) for place in _places(task)])
    commands = rng.uniform(low, high, (len(measured), layout.command_memory, len(low)))
    states = np.concatenate(
        [np.tile(measured, (1, 1 + layout.measurement_memory)), commands.reshape(len(measured), -1)], axis=1
    )
    points = np.asarray(tracked_output(spec, measured))
    points = np.concatenate([points[:1], points[:-1]])  # the first is met exactly, the others are missed
    given = tuple(jnp.asarray(array, jnp.float32) for array in (states, commands[:, 0], points))
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(task.cost, argnums=(0, 1))))(*given)
    values, slopes = np.asarray(values), np.concatenate([np.asarray(slope) for slope in slopes], axis=1)
    if not np.isfinite(values).all():
        return [Finding("cost", Verdict.WRONG, "it is NaN or infinite at places inside the limits")]
    if not np.isfinite(slopes).all():
        where = " exactly on the reference" if not np.isfinite(slopes[0]).all() else ""
        return [Finding("cost", Verdict.WRONG, f"its derivative is NaN or infinite{where}: a root or norm at zero?")]
    if not slopes.any():
        return [Finding("cost", Verdict.WRONG, "its derivative is zero everywhere: there is nothing to learn from")]
    return [Finding("cost", Verdict.OK, f"finite and differentiable at {len(values)} places")]


def _unknown(task: Task) -> list[Finding]:
    layout = task.spec.layout
    covered = (layout.command_memory - 1) * task.spec.period_s
    return [
        Finding(
            "dead time",
            Verdict.NOTE,
            f"not known yet; command_memory covers {covered:.3g} s of it. `firsthand inspect` measures it",
        )
    ]
