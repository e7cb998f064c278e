"""The controller of `deepc` and `koopman`: at every control step the best commands over the horizon; the first is sent.

What the predictor misses on average is made up for: at every step, the prediction of what the last `horizon` commands
led to is compared with what was measured, step by step of the horizon, and the filtered difference is added to new
predictions. The filter is chosen on held-out data with the other settings; zero is a choice.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import command_feature, last_command

from ..observed import goes_on, read_observation
from .deepc import change_cost
from .input_map import InputMap
from .joint_reference import JointReference
from .prediction import AbstractPredictor
from .program import CommandProgram
from .recording import Signals


@dataclass(frozen=True)
class Law:
    """All that was chosen before the first step, but the weight on changes of command."""

    spec: ControlSpec
    predictor: AbstractPredictor
    inputs: InputMap
    weights: Float[np.ndarray, " outputs"]
    """Of a squared error of each scaled output."""
    change_weight: Float[np.ndarray, " commands"]
    """Of a squared change of each command behind its map: the task's own."""
    rate: Float[np.ndarray, " commands"]
    """The largest change of a command behind its map that is allowed: the largest of the recording."""
    speeds: Float[np.ndarray, " outputs"]
    """Usual speeds of the outputs in the recording."""
    correction: float
    """The filter's share of new prediction errors; 0 for no correction."""


@dataclass
class _Robot:
    """The memory of one robot."""

    program: CommandProgram
    reference: JointReference
    measured: np.ndarray
    """`(past + horizon, seen)`, oldest first; scaled."""
    commands: np.ndarray
    """`(past + horizon, commands)`, behind their map: `commands[-1]` led to `measured[-1]`."""
    known: int
    """How many of these steps were made since the robot began to move."""
    bias: np.ndarray
    """`(horizon, outputs)`."""
    state: np.ndarray
    """The state vector of the step before …"""
    sent: np.ndarray
    """… and the command that was sent then."""


class PredictiveController:
    """Commands for a batch of robots, from what a policy sees; it remembers each of them.

    Args:
        law: from `design`.
        factor: the weight on changes of command, as a multiple of the task's.
    """

    def __init__(self, law: Law, factor: float) -> None:
        self.law, self.spec, self.signals = law, law.spec, Signals.of(law.spec)
        predictor = law.predictor
        self.plan = predictor.plan(law.weights)
        change, self.before = change_cost(predictor.horizon, factor * law.change_weight)
        self.hessian = self.plan.hessian + change
        limits = self.spec.limits
        low, high = np.full(len(law.weights), -np.inf), np.full(len(law.weights), np.inf)
        for i, entry in enumerate(self.signals.outputs):
            if entry in self.spec.layout.position:
                j = self.spec.layout.position.index(entry)
                low[i], high[i] = limits.position_low[j], limits.position_high[j]
        center, scale = (v[: len(low)] for v in (self.signals.center, self.signals.scale))
        self.low, self.high = (low - center) / scale, (high - center) / scale
        self.robots: list[_Robot | None] = []

    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1], a row per robot; `first` is true where a trajectory begins."""
        if len(self.robots) != len(seen):
            self.robots = [None] * len(seen)
        return np.stack([self._one(i, row.astype(float), bool(first[i])) for i, row in enumerate(seen)])

    def _one(self, i: int, seen: np.ndarray, first: bool) -> np.ndarray:
        spec, law, predictor = self.spec, self.law, self.law.predictor
        state, points = read_observation(spec, seen)
        measured = state[: spec.layout.num_measured]
        command = np.asarray(command_feature(spec, last_command(spec.layout, state)))
        scaled, v = self.signals.scaled(measured), law.inputs.forward(command)
        robot = self.robots[i]
        if robot is None or (first and not goes_on(spec, robot.state, robot.sent, state)):
            robot = self.robots[i] = self._begin(scaled, v)
        else:
            robot.measured = np.concatenate([robot.measured[1:], scaled[None]])
            robot.commands = np.concatenate([robot.commands[1:], v[None]])
            robot.known += 1
            self._correct(robot)
        if first:
            robot.reference.begin(measured)
        outputs = len(law.weights)
        center, scale = self.signals.center[:outputs], self.signals.scale[:outputs]
        wanted = (robot.reference(points) - center) / scale - robot.bias
        past = predictor.past
        features = predictor.features(
            robot.commands[None, -past:].reshape(1, -1), robot.measured[-past:].reshape(1, -1)
        )
        flat, phi = wanted.ravel(), features[0]
        linear = self.plan.from_past @ phi + self.plan.from_reference @ flat + self.before @ v
        free = self.plan.free @ phi + self.plan.pulled @ flat + robot.bias.ravel()
        best = robot.program.solve(linear, v, free)[: spec.layout.num_commands]
        action = np.clip(law.inputs.backward(best), -1.0, 1.0)
        low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
        robot.state, robot.sent = state, (low + high) / 2 + (high - low) / 2 * action
        return action.astype(np.float32)

    def _begin(self, scaled: np.ndarray, v: np.ndarray) -> _Robot:
        """A robot that has been standing like this for a long time."""
        law, predictor = self.law, self.law.predictor
        length, (low, high) = predictor.past + predictor.horizon, law.inputs.bounds
        return _Robot(
            CommandProgram(
                self.hessian,
                self.plan.gain,
                low=low,
                high=high,
                rate=law.rate,
                output_low=self.low,
                output_high=self.high,
                weight=float(law.weights.max()),
            ),
            JointReference(self.spec, predictor.horizon, law.speeds),
            np.tile(scaled, (length, 1)),
            np.tile(v, (length, 1)),
            0,
            np.zeros((predictor.horizon, len(law.weights))),
            np.zeros(0),
            np.zeros(0),
        )

    def _correct(self, robot: _Robot) -> None:
        """Compare the prediction of a horizon ago with what came."""
        law, predictor = self.law, self.law.predictor
        past, horizon, outputs = predictor.past, predictor.horizon, len(law.weights)
        if law.correction == 0 or robot.known < horizon:
            return
        features = predictor.features(robot.commands[:past].reshape(1, -1), robot.measured[:past].reshape(1, -1))
        found = predictor.predict(features, robot.commands[past:].reshape(1, -1)).reshape(horizon, outputs)
        missed = robot.measured[past:, :outputs] - found
        if np.isfinite(missed).all():  # a value that did not come would stay in the filter for ever
            robot.bias = robot.bias + law.correction * (missed - robot.bias)
