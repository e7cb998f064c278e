"""What was recorded of a robot, and windows of it: past and future of commands and measurements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from firsthand.controllers.pid import controlled_entries
from firsthand.robots.base import AbstractRobot, EpisodeRecord
from firsthand.simulators.record import record
from firsthand.tasks import Task
from firsthand_onboard import ControlSpec
from firsthand_onboard.features import command_feature

MINUTES = 5.0
"""Robot time of the excitation …"""
MIN_STEPS = 3000
"""… or that of this many control steps, where it is longer: slow robots need more."""
HELD_OUT = 0.25
"""The last part of the recording, on which settings are chosen."""


@dataclass(frozen=True)
class Signals:
    """Which entries of the measurement are looked at, and in which units."""

    outputs: tuple[int, ...]
    """Entries that are controlled: tracked ones, or the positions where kinematics stand between."""
    seen: tuple[int, ...]
    """Entries whose past is looked at: the outputs first, then their velocities where they are measured."""
    center: Float[np.ndarray, " seen"]
    scale: Float[np.ndarray, " seen"]

    @staticmethod
    def of(spec: ControlSpec) -> "Signals":
        """Those of a robot."""
        layout, outputs = spec.layout, controlled_entries(spec)
        speeds = [
            layout.velocity[layout.position.index(i)] for i in outputs if layout.velocity and i in layout.position
        ]
        seen = (*outputs, *speeds)
        center, scale = (np.asarray(v)[list(seen)] for v in (spec.scales.measured_center, spec.scales.measured_scale))
        return Signals(tuple(outputs), seen, center, scale)

    def scaled(self, measured: Float[np.ndarray, "*rows measured"]) -> Float[np.ndarray, "*rows seen"]:
        """The entries that are looked at, of order one."""
        return (np.asarray(measured, float)[..., list(self.seen)] - self.center) / self.scale


@dataclass(frozen=True)
class Series:
    """A recording, without gaps where it is valid."""

    measured: Float[np.ndarray, "steps+1 seen"]
    """Scaled."""
    commands: Float[np.ndarray, "steps commands"]
    """In half ranges from the middle; `measured[k + 1]` follows `commands[k]`."""
    valid: Bool[np.ndarray, " steps"]
    """Which steps happened."""

    def __len__(self) -> int:
        return len(self.commands)


def minutes_needed(spec: ControlSpec) -> float:
    """Robot time of the excitation, in minutes, before it is rounded up to whole episodes."""
    return max(MINUTES, MIN_STEPS * spec.period_s / 60)


def episodes_needed(task: Task) -> int:
    """The same in episodes."""
    return math.ceil(60 * minutes_needed(task.spec) / task.episode_s)


def excite(robot: AbstractRobot, *, seed: int) -> Series:
    """Move the robot about at random, inside its limits."""
    return as_series(robot.task.spec, list(record(robot, minutes_needed(robot.task.spec), seed=seed)))


def as_series(spec: ControlSpec, records: Sequence[EpisodeRecord]) -> Series:
    """Episodes one after the other; a step from one trajectory to the next that does not begin where it ended, and
    one that was not measured, did not happen."""
    signals = Signals.of(spec)
    pieces = [
        (y, u, v) for r in records for y, u, v in zip(r.measured, r.commands, np.asarray(r.valid, bool), strict=True)
    ]
    measured, commands, valid = [], [], []
    last: np.ndarray | None = None
    for y, u, ok in pieces:
        if last is not None and not np.array_equal(last, y[0]):
            # One more step, which did not happen, leads from the one end to the other beginning.
            measured.append(last[None])
            commands.append(u[:1])
            valid.append(np.zeros(1, bool))
        measured.append(y[:-1])
        commands.append(u)
        valid.append(ok & np.isfinite(y[1:]).all(axis=1) & np.isfinite(y[:-1]).all(axis=1))
        last = y[-1]
    assert last is not None
    rows = np.concatenate([*measured, last[None]])
    applied = np.asarray(command_feature(spec, np.concatenate(commands).astype(float)))
    return Series(np.nan_to_num(signals.scaled(rows)), applied, np.concatenate(valid))


@dataclass(frozen=True)
class Windows:
    """Stretches of a recording, a row each: `past` steps before now and `horizon` steps after it.

    Now is k: the past is v_{k-past} … v_{k-1} and y_{k-past+1} … y_k, the future v_k … v_{k+horizon-1} and
    y_{k+1} … y_{k+horizon}, oldest first, all channels of a step together.
    """

    past_commands: Float[np.ndarray, "windows past*commands"]
    past_measured: Float[np.ndarray, "windows past*seen"]
    future_commands: Float[np.ndarray, "windows horizon*commands"]
    future_outputs: Float[np.ndarray, "windows horizon*outputs"]

    def __len__(self) -> int:
        return len(self.past_commands)

    @staticmethod
    def of(series: Series, commands: Float[np.ndarray, "steps commands"], outputs: int, *, past: int, horizon: int):
        """All windows that happened; `commands` are those of the series behind their map."""
        length = past + horizon
        if len(series) < length:
            return Windows(*(np.zeros((0, 0)) for _ in range(4)))
        whole = np.lib.stride_tricks.sliding_window_view(series.valid, length).all(axis=1)
        now = np.flatnonzero(whole) + past
        back, ahead = np.arange(-past, 0), np.arange(horizon)

        def rows(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
            return values[now[:, None] + offsets].reshape(len(now), values.shape[1] * len(offsets))

        return Windows(
            rows(commands, back),
            rows(series.measured, back + 1),
            rows(commands, ahead),
            rows(series.measured[:, :outputs], ahead + 1),
        )

    def part(self, rows: slice) -> "Windows":
        """Some of them."""
        return Windows(
            self.past_commands[rows], self.past_measured[rows], self.future_commands[rows], self.future_outputs[rows]
        )

    def split(self, gap: int) -> tuple["Windows", "Windows"]:
        """Those to learn from, and those held out: the last quarter, without windows that overlap the others."""
        first = round((1 - HELD_OUT) * len(self))
        return self.part(slice(None, max(first - gap, 1))), self.part(slice(first, None))
