"""Episodes under a controller that is not a policy: step by step with nothing but `AbstractRobot.play`."""

from abc import abstractmethod
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from firsthand_onboard.features import build_reference, initial_state, next_state, observation, preview_points

from ..robots.base import AbstractRobot, EpisodeRecord, neutral


@runtime_checkable
class StepController(Protocol):
    """Commands for a batch of robots, from what a policy would see."""

    @abstractmethod
    def __call__(self, seen: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Actions in [-1, 1], `(robots, commands)`; `first` is true where a trajectory begins."""


def run_by_hand(
    robot: AbstractRobot, controller: StepController, goals: Float[np.ndarray, "trajectories goal"]
) -> EpisodeRecord:
    """Visit the goals one after the other, as an episode of training does.

    A trajectory is cut where the robot ends or is restarted, as at a limit.
    """
    spec = robot.task.spec
    low, high = (np.asarray(v, np.float32) for v in (spec.limits.command_low, spec.limits.command_high))
    steps, count = spec.reference.steps, len(goals)
    here = robot.measured()
    state = initial_state(spec.layout, here, neutral(spec))
    starts, references = [], []
    measured = np.zeros((count, steps + 1, spec.layout.num_measured), np.float32)
    truth, knows_truth = measured.copy(), robot.true_measurement() is not None
    commands = np.tile(neutral(spec), (count, steps, 1))
    valid = np.zeros((count, steps), bool)
    for i, goal in enumerate(goals):
        points = np.asarray(build_reference(spec, here, goal.astype(np.float32)), np.float32)
        starts.append(state)
        references.append(points)
        measured[i], truth[i] = here, _truth(robot, here)
        for k in range(steps):
            seen = np.asarray(observation(spec, state, preview_points(spec, points, k)))
            action = np.asarray(controller(seen[None], np.asarray([k == 0]))[0], np.float32)
            commands[i, k] = np.clip((low + high) / 2 + np.clip(action, -1, 1) * (high - low) / 2, low, high)
            after = np.asarray(robot.play(commands[i, k][None])[-1], np.float32)
            here = robot.measured()
            restarted = not np.array_equal(after, here)
            if np.isfinite(after).all():
                valid[i, k], measured[i, k + 1 :] = True, after
                truth[i, k + 1 :] = after if restarted else _truth(robot, after)
            if restarted:
                state = initial_state(spec.layout, here, neutral(spec))
                break
            state = next_state(spec.layout, state, commands[i, k], after)
    return EpisodeRecord(
        starts=np.stack(starts).astype(np.float32),
        measured=measured,
        commands=commands.astype(np.float32),
        references=np.stack(references),
        free=np.ones(commands.shape, bool),
        valid=valid,
        truth=truth if knows_truth else None,
    )


def _truth(robot: AbstractRobot, measured: np.ndarray) -> np.ndarray:
    true = robot.true_measurement()
    return measured if true is None else true
