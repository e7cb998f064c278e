"""Goals and evaluation references for a robot of which no more is known than its limits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec, SelectedOutput
from firsthand_onboard.features import PEAK_OF_QUINTIC, build_reference
from firsthand_onboard.kinematics import nearest_configuration, output_of_positions, tracked_output
from firsthand_onboard.spec import SpecError

from ..errors import UserError
from . import paths
from .base import EvaluationReference, Task

MARGIN = 0.05
"""Goals keep this share of the range away from the limits."""
CANDIDATES = 32
MIN_TRAVEL = 0.3
"""A goal is at least this share of the farthest reachable way off: short hops teach little."""
TOURS, TOUR_GOALS, TOUR_SEED = 2, 3, 0x70_0055
"""Evaluation references that are drawn from goals, goals of each, and their seed: training never has it."""
REHEARSED = 5
"""Places from which goals are asked for before anything moves."""
CHECKED_POINTS = 16
"""Points of a path that are looked up in the inverse kinematics: a path is smooth, and each takes milliseconds."""


@dataclass(frozen=True)
class GoalBox:
    """The range of goals, per goal coordinate."""

    low: tuple[float, ...]
    """Lower limit."""
    high: tuple[float, ...]
    """Upper limit."""

    def check(self, what: str, points: np.ndarray) -> None:
        """`UserError` for the first of the points `(…, goal)` that is not inside."""
        low, high = np.asarray(self.low), np.asarray(self.high)
        slack = 1e-6 * (high - low)
        rows = np.reshape(np.asarray(points, float), (-1, len(low)))
        for row in rows:
            if not ((row >= low - slack) & (row <= high + slack)).all():  # NaN is not inside either
                raise UserError(f"{what} leads to {_show(row)}, but must stay between {_show(low)} and {_show(high)}.")


def _show(values: np.ndarray) -> str:
    return "(" + ", ".join(f"{v:.4g}" for v in values) + ")"


@dataclass(frozen=True)
class BoxGoals:
    """Uniformly drawn goals inside a box, each within reach of the last at the allowed speeds."""

    spec: ControlSpec
    """The specification, which defines goals and the highest speeds of references."""
    box: GoalBox
    """The box of the goals."""

    def __call__(self, rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
        """Each goal is drawn as if the last one had been reached."""
        reference = self.spec.reference
        low, high = np.asarray(self.box.low), np.asarray(self.box.high)
        margin = MARGIN * (high - low)
        low, high = low + margin, high - margin
        duration = reference.steps * self.spec.period_s
        down, up = (np.asarray(rate) * duration / PEAK_OF_QUINTIC for rate in (reference.rate_low, reference.rate_high))
        at = np.clip(goal_of(self.spec, measured), low, high)
        goals = []
        for _ in range(count):
            candidates = rng.uniform(np.maximum(low, at + down), np.minimum(high, at + up), (CANDIDATES, len(low)))
            travel = np.max(np.abs(candidates - at) / np.minimum(up, high - low), axis=1)
            at = candidates[np.argmax(np.minimum(travel, MIN_TRAVEL))]  # the first that is far enough
            goals.append(at)
        return np.stack(goals)


@dataclass(frozen=True)
class CheckedGoals:
    """Somebody's own goals, refused when they leave the box."""

    goals: Callable[[np.random.Generator, np.ndarray, int], np.ndarray]
    """The user's function that draws goals."""
    box: GoalBox
    """Where goals may lie."""

    def __call__(self, rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
        """The goals, if there are `count` of them and all are inside."""
        with _as_user_error("goals fails"):
            goals = np.asarray(self.goals(rng, measured, count), float)
        wanted = (count, len(self.box.low))
        if goals.shape != wanted:
            raise UserError(f"goals returned an array of shape {goals.shape}, but must return one of {wanted}.")
        self.box.check("the task's goals function", goals)
        return goals


def check_goals(task: Task) -> None:
    """`UserError` where the task's goals leave the limits: asked before anything moves, from home and from goals on.

    Goals that depend on where the robot is are asked for from `REHEARSED` places.
    """
    spec, limits = task.spec, task.spec.limits
    rng = np.random.Generator(np.random.Philox(key=0))
    measured = np.asarray(spec.scales.measured_center, float)
    measured[list(spec.layout.position)] = task.home
    measured[list(spec.layout.velocity)] = 0.0
    in_position = spec.reference.space == "position"
    entries: tuple[int, ...] = spec.layout.position if in_position else getattr(spec.kinematics, "indices", ())
    for _ in range(REHEARSED):
        goals = np.asarray(task.sample_goals(rng, measured.astype(np.float32), task.trajectories), float)
        if goals.shape != (task.trajectories, spec.goal_size) or not np.isfinite(goals).all():
            raise UserError(
                f"the task's goals function returned {_show(goals.reshape(-1)[: spec.goal_size])} in an array of shape "
                f"{goals.shape}, but must return finite numbers of shape {(task.trajectories, spec.goal_size)}."
            )
        for column, entry in enumerate(entries):
            if entry not in spec.layout.position:
                continue
            i = spec.layout.position.index(entry)
            low, high = limits.position_low[i], limits.position_high[i]
            slack = 1e-6 * (high - low)
            outside = (goals[:, column] < low - slack) | (goals[:, column] > high + slack)
            if outside.any():
                value = goals[outside, column][0]
                raise UserError(
                    f"the task's goals function leads {spec.layout.measured[entry]} to {value:.4g}, but its limits are "
                    f"{low:g} to {high:g}; nothing has moved yet."
                )
            measured[entry] = goals[rng.integers(len(goals)), column]


@contextmanager
def _as_user_error(what: str) -> Iterator[None]:
    """Whatever is raised in the user's own code becomes one sentence."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what} with {type(error).__name__}: {' '.join(str(error).split())}.") from error


def goal_of(spec: ControlSpec, measured: np.ndarray) -> np.ndarray:
    """Where the robot is, as a goal."""
    measured = np.asarray(measured, float)
    in_position = spec.reference.space == "position"
    return measured[list(spec.layout.position)] if in_position else tracked_output(spec, measured)


@dataclass(frozen=True)
class BoxReferences:
    """A line there and back, and a loop, in the inner half of the box."""

    spec: ControlSpec
    """The specification, which defines goals."""
    box: GoalBox
    """The box of the goals."""
    home: tuple[float, ...]
    """The configuration that stands for those that cannot be computed."""

    def __call__(self, speed: float) -> tuple[EvaluationReference, ...]:
        """Travelled at `speed`, in units of the tracked output per second; with smooth starts and stops."""
        found = []
        for name, curve in (("line", self.line), ("loop", self.loop)):
            fine = curve(np.linspace(0.0, 1.0, 2001))
            length = along(self.outputs(fine))
            if name == "loop" and len(self.box.low) == 1:
                goals = self.swing(length[-1], speed)
            else:
                # `travelled` rests once at the far end of the line: both halves are travelled one after the other.
                end = length[1000] if name == "line" else length[-1]
                half = paths.travelled_distance(end, speed, self.spec.period_s)
                way = np.concatenate([half, length[1000] + half[1:]]) if name == "line" else half
                goals = np.stack([np.interp(way, length, column) for column in fine.T], axis=1)
            points = self.outputs(goals)
            in_position = self.spec.reference.space == "position"
            start = goals[0] if in_position else start_of(self.spec, points[0], self.home)
            found.append(EvaluationReference(name, points, start))
        return tuple(found)

    def line(self, phase: np.ndarray) -> np.ndarray:
        """Along the diagonal of the box, from a quarter to three quarters and back."""
        low, high = np.asarray(self.box.low), np.asarray(self.box.high)
        share = 0.25 + 0.5 * (1.0 - np.abs(2.0 * phase - 1.0))
        return low + share[:, None] * (high - low)

    def loop(self, phase: np.ndarray) -> np.ndarray:
        """Each coordinate swings by a quarter of its range, a quarter turn after the one before it."""
        low, high = np.asarray(self.box.low), np.asarray(self.box.high)
        turn = 2 * np.pi * (phase[:, None] - 0.25 * np.arange(len(low)))
        return (low + high) / 2 + 0.25 * (high - low) * np.sin(turn)

    def swing(self, length: float, speed: float) -> np.ndarray:
        """The loop of a single coordinate, a sine in time whose highest speed is `speed`.

        At constant speed it would reverse within one control period, which no machine can follow.
        """
        around = length * np.pi / 2  # a circle whose radius is the sine's amplitude, a quarter of the way
        return self.loop(paths.travelled_distance(around, speed, self.spec.period_s) / around)

    def outputs(self, goals: np.ndarray) -> np.ndarray:
        """The tracked output at goals `(points, goal)`."""
        in_position = self.spec.reference.space == "position"
        return np.asarray(output_of_positions(self.spec.kinematics, goals)) if in_position else goals

    def speed(self) -> float:
        """A speed at which no goal coordinate exceeds half its allowed rate."""
        fine = self.loop(np.linspace(0.0, 1.0, 2001))
        step = np.maximum(np.diff(along(self.outputs(fine))), 1e-12)
        rates = np.minimum(-np.asarray(self.spec.reference.rate_low), np.asarray(self.spec.reference.rate_high))
        per_length = np.abs(np.diff(fine, axis=0)) / step[:, None] / rates
        return float(0.5 / np.quantile(per_length.max(axis=1), 0.95))


@dataclass(frozen=True)
class GoalTours:
    """References through goals that are drawn like those of training, with seeds of their own, at training's speeds."""

    spec: ControlSpec
    """The specification, which defines goals and the highest speeds of references."""
    goals: Callable[[np.random.Generator, np.ndarray, int], np.ndarray]
    """Draws goals: the task's own."""
    home: tuple[float, ...]
    """Where each tour starts, at rest."""

    def __call__(self, speed: float) -> tuple[EvaluationReference, ...]:
        """The tours, faster or slower than in training by `speed` over the mean speed there."""
        pace = speed / self.speed()
        found = []
        for i in range(TOURS):
            points = self.tour(i)
            steps = max(round((len(points) - 1) / pace), 1)
            share = np.linspace(0.0, len(points) - 1, steps + 1)
            columns = [np.interp(share, np.arange(len(points)), column) for column in points.T]
            found.append(EvaluationReference(f"tour {i + 1}", np.stack(columns, axis=1), np.asarray(self.home, float)))
        return tuple(found)

    def tour(self, number: int) -> np.ndarray:
        """The path of a tour through `TOUR_GOALS` goals, `(steps, outputs)`, one after the other as in training."""
        spec, rng = self.spec, np.random.Generator(np.random.Philox(key=[TOUR_SEED, number]))
        measured = np.asarray(spec.scales.measured_center, float)
        measured[list(spec.layout.position)] = self.home
        measured[list(spec.layout.velocity)] = 0.0
        parts = []
        for goal in self.goals(rng, measured.astype(np.float32), TOUR_GOALS):
            points = np.asarray(build_reference(spec, measured, np.asarray(goal, float)), float)
            parts.append(points[: spec.reference.steps])
            entries = spec.layout.position if spec.reference.space == "position" else None
            if entries is None:
                entries = getattr(spec.kinematics, "indices", ())
            measured[list(entries)] = goal[: len(entries)]
        return np.concatenate(parts)

    def speed(self) -> float:
        """The mean speed in training, in units of the tracked output per second."""
        steps = [np.linalg.norm(np.diff(self.tour(i), axis=0), axis=1) for i in range(TOURS)]
        return float(np.mean(np.concatenate(steps))) / self.spec.period_s


def along(points: np.ndarray) -> np.ndarray:
    """The length of the path up to each of its points."""
    return np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])


def start_of(spec: ControlSpec, point: np.ndarray, home: tuple[float, ...]) -> np.ndarray:
    """A configuration with the tracked output at `point`; `home` stands for positions that `point` says nothing of."""
    limits = spec.limits
    if not isinstance(spec.kinematics, SelectedOutput):
        return nearest_configuration(spec.kinematics, point, low=limits.position_low, high=limits.position_high)
    start = np.asarray(home, float)
    for index, value in zip(spec.kinematics.indices, point, strict=True):
        if index in spec.layout.position:
            start[spec.layout.position.index(index)] = value
    return start


@dataclass(frozen=True)
class CheckedReferences:
    """Somebody's own evaluation paths by name, with a start found for each; refused when they leave the box."""

    paths: Callable[[float], dict[str, np.ndarray]]
    """The user's: from the speed to the paths, `(steps, outputs)` each."""
    spec: ControlSpec
    """Says what is tracked."""
    box: GoalBox
    """Where a path of measured outputs may lie."""
    home: tuple[float, ...]
    """The configuration that stands for those that cannot be computed."""

    def __call__(self, speed: float) -> tuple[EvaluationReference, ...]:
        """The references, if all are inside the limits."""
        with _as_user_error("evaluation fails"):
            found = self.paths(speed)
        if not isinstance(found, dict) or not found:
            what = "an empty dict" if isinstance(found, dict) else type(found).__name__
            raise UserError(f"evaluation returned {what}, but must give at least one path by name in a dict.")
        return tuple(self._make_reference(str(name), points) for name, points in found.items())

    def _make_reference(self, name: str, path: Any) -> EvaluationReference:
        """One of them."""
        with _as_user_error(f"the evaluation path {name!r} is not an array of numbers, but fails"):
            points = np.asarray(path, float)
        if points.ndim != 2 or len(points) < 2 or points.shape[1] != self.spec.num_outputs:
            raise UserError(
                f"the evaluation path {name!r} has shape {points.shape}, but must have {self.spec.num_outputs} "
                "columns, one per tracked output, and a row per step."
            )
        if not isinstance(self.spec.kinematics, SelectedOutput):
            for point in points[:: max(len(points) // CHECKED_POINTS, 1)]:
                try:
                    start_of(self.spec, point, self.home)
                except SpecError as error:
                    raise UserError(f"the evaluation path {name!r} leaves the limits: {error}.") from None
        else:
            self.box.check(f"the evaluation path {name!r}", points)
        return EvaluationReference(name, points, start_of(self.spec, points[0], self.home))
