"""Moving a robot about so that its log shows how it moves: random excitation, motion between places, standing still."""

from collections.abc import Callable, Iterator

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import initial_state, next_state
from firsthand_onboard.kinematics import tracked_output
from firsthand_onboard.signals import find_leaps

from ..robots import AbstractRobot, EpisodeRecord
from ..robots.base import neutral
from ..tasks import Task

CHUNK_S = 5.0
"""The robot is watched between chunks of this length: where it drifts to a limit, the next chunk leads back."""
GENTLE_CHUNKS = 12
"""The first chunks are gentle and come back, to learn which command leads where."""


def record(
    robot: AbstractRobot, minutes: float, *, seed: int = 0, progress: Callable[[float], None] = lambda minutes: None
) -> Iterator[EpisodeRecord]:
    """Episodes of the task's length until `minutes` of robot time are over; at least one.

    Nothing is assumed about which command moves what: a linear map from (place, mean command) to the place after the
    chunk is fitted to the chunks so far, and the mean command that leads to a random place is read off it. Around that
    mean, commands vary at random: steps, slow and fast noise, of random size and in random channels.

    Where the robot is not where the chunk before left it (it was reset, or moved in between), and where a position
    jumps further than the measured velocity explains, the step is marked as one that did not happen.
    """
    task, spec = robot.task, robot.task.spec
    rng = np.random.default_rng(seed)
    steps = max(round(CHUNK_S / spec.period_s), 10)
    places = np.zeros((0, 2 * len(spec.layout.position) + spec.layout.num_commands))
    state = np.zeros(0, np.float32)
    measured: np.ndarray = np.zeros((0, spec.layout.num_measured), np.float32)
    commands: np.ndarray = np.zeros((0, spec.layout.num_commands), np.float32)
    valid: np.ndarray = np.zeros(0, bool)
    per_episode = task.trajectories * task.steps
    total, done = max(round(60 * minutes / spec.period_s), 1), 0
    while done < total:
        wanted = np.clip(excitation(spec, _place(spec, robot.measured()), places, steps, rng), -1.0, 1.0)
        seen, applied = robot.play_applied(_to_command_range(spec, wanted))
        happened = _seen_steps(seen)
        seen, applied = seen[: happened + 1], applied[:happened]
        mean = _fractions(spec, applied.mean(axis=0))
        row = np.concatenate([_place(spec, seen[0]), mean, _place(spec, seen[-1])])
        places = np.concatenate([places, row[None]])[-400:]
        if not measured.size:
            measured, state = seen[:1], initial_state(spec.layout, seen[0], neutral(spec))
        elif not np.array_equal(measured[-1], seen[0]):
            if valid.size:
                valid[-1] = False
            else:
                state = _without_past(spec, seen[0])
            measured = np.concatenate([measured[:-1], seen[:1]])
        measured, commands = np.concatenate([measured, seen[1:]]), np.concatenate([commands, applied])
        valid = np.concatenate([valid, _is_explained(spec, seen)])
        while len(commands) >= per_episode and done < total:
            n = per_episode
            episode, state = as_record(task, state, measured[: n + 1], commands[:n], valid[:n])
            measured, commands, valid = measured[n:], commands[n:], valid[n:]
            done += n
            progress(done * spec.period_s / 60)
            yield episode


def _seen_steps(seen: np.ndarray) -> int:
    """How many steps of a chunk there are until nothing is measured any more; at least one, so that time goes on."""
    finite = np.flatnonzero(np.isfinite(seen).all(axis=1))
    return max(int(finite[-1]) if finite.size else 0, 1)


def _is_explained(spec: ControlSpec, seen: np.ndarray) -> np.ndarray:
    """Which steps were measured and moved no position by a leap: an angle that wraps around does not move so far."""
    finite = np.asarray(np.isfinite(seen).all(axis=1))
    return finite[:-1] & finite[1:] & ~find_leaps(spec, seen)


def _without_past(spec: ControlSpec, measured: np.ndarray) -> np.ndarray:
    """The state vector of a robot of which nothing earlier is known: NaN in the registers until they are filled."""
    state = np.full(spec.layout.size, np.nan, np.float32)
    state[: spec.layout.num_measured] = measured
    return state


def excitation(
    spec: ControlSpec, here: np.ndarray, places: np.ndarray, steps: int, rng: np.random.Generator
) -> np.ndarray:
    """Commands `(steps, commands)` of one chunk, in half ranges from the middle."""
    count = spec.layout.num_commands
    if len(places) < GENTLE_CHUNKS:
        half = 0.4 * _noise(rng, steps // 2, count, 0.3 / spec.period_s)
        return np.concatenate([half, -half, np.zeros((steps % 2, count))])
    kind = rng.uniform()
    if kind < 0.05:
        return np.zeros((steps, count))
    mean = _command_towards(spec, here, places, rng)
    size = rng.uniform(0.05, 0.8, count) * (rng.uniform(size=count) < 0.7)
    if kind < 0.35:  # steps, held for different times in each channel
        noise = np.stack(
            [_random_levels(rng, steps, rng.uniform(0.2, 2.0) / spec.period_s) for _ in range(count)], axis=1
        )
    else:
        noise = _noise(rng, steps, count, rng.uniform(0.1, 1.0) / spec.period_s)
    # The mean comes and goes smoothly: most robots are never asked to jump.
    ramp = np.clip(np.minimum(np.arange(steps), np.arange(steps)[::-1]) / (0.1 * steps), 0.0, 1.0)
    return mean * ramp[:, None] + size * noise


def _command_towards(spec: ControlSpec, here: np.ndarray, places: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The mean command, in half ranges, that leads to a random place, as far as the chunks so far tell."""
    size, count = len(here), spec.layout.num_commands
    before, mean, after = np.split(places, [size, size + count], axis=1)
    inputs = np.concatenate([before, mean, np.ones((len(places), 1))], axis=1)
    gram = inputs.T @ inputs + 1e-2 * np.eye(inputs.shape[1])
    solution = np.linalg.solve(gram, inputs.T @ (after - before))
    stay, effect = solution[:size], solution[size : size + count]
    target = rng.uniform(-0.8, 0.8, size)
    wanted = target - here - here @ stay - solution[-1]
    command = np.linalg.solve(effect @ effect.T + 1e-2 * np.eye(count), effect @ wanted)
    return np.clip(command, -0.9, 0.9)


def _place(spec: ControlSpec, measured: np.ndarray) -> np.ndarray:
    """The position, scaled so that its limits are ±1; zero where it is not known."""
    low, high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
    place = (measured[list(spec.layout.position)] - (low + high) / 2) / ((high - low) / 2)
    return np.clip(np.nan_to_num(place), -2.0, 2.0)


def _noise(rng: np.random.Generator, steps: int, count: int, time_constant: float) -> np.ndarray:
    """First-order filtered noise of standard deviation 1."""
    keep = np.exp(-1.0 / max(time_constant, 0.1))
    noise = rng.standard_normal((steps, count))
    for k in range(1, steps):
        noise[k] = keep * noise[k - 1] + np.sqrt(1 - keep**2) * noise[k]
    return noise


def _random_levels(rng: np.random.Generator, steps: int, mean_length: float) -> np.ndarray:
    """Random levels, each held for a random time."""
    levels = rng.uniform(-1.7, 1.7, steps)
    changes = np.cumsum(rng.uniform(size=steps) < 1.0 / max(mean_length, 1.0))
    return levels[changes - changes[0]]


def _to_command_range(spec: ControlSpec, commands: np.ndarray) -> np.ndarray:
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    return ((low + high) / 2 + (high - low) / 2 * commands).astype(np.float32)


def _fractions(spec: ControlSpec, commands: np.ndarray) -> np.ndarray:
    """In half ranges from the middle."""
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    return (commands - (low + high) / 2) / ((high - low) / 2)


def as_record(
    task: Task, start: np.ndarray, measured: np.ndarray, commands: np.ndarray, valid: np.ndarray
) -> tuple[EpisodeRecord, np.ndarray]:
    """A stretch of one episode's length as an episode, and the state vector at its end.

    Nothing was to be followed, so the reference of each trajectory is where its tracked output was. What was before a
    step that did not happen tells nothing about what comes after it.
    """
    spec, shape = task.spec, (task.trajectories, task.steps)
    starts, state = [], start
    for k, command in enumerate(commands):
        if k % task.steps == 0:
            starts.append(state)
        after = measured[k + 1]
        state = next_state(spec.layout, state, command, after) if valid[k] else _without_past(spec, after)
    rows = np.arange(task.trajectories)[:, None] * task.steps + np.arange(task.steps + 1)
    points = np.minimum(np.arange(spec.reference_length), task.steps)
    pieces = measured[rows]
    record = EpisodeRecord(
        starts=np.stack(starts).astype(np.float32),
        measured=pieces,
        commands=commands.reshape(*shape, -1),
        references=np.asarray(tracked_output(spec, pieces), np.float32)[:, points],
        free=np.zeros((*shape, commands.shape[1]), bool),
        valid=valid.reshape(shape),
    )
    return record, state
