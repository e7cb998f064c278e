"""A robot in numpy whose dead time, dead band, gain, lag, noise and coupling are known."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from firsthand.robots import AbstractRobot
from firsthand.tasks.base import EvaluationReference, Task
from firsthand.tasks.cost import tracking_cost
from firsthand_onboard import ControlSpec, Limits, ReferenceSpec, Scales, SelectedOutput, StateLayout

PERIOD_S = 0.05


@dataclass(frozen=True)
class Truth:
    """What `firsthand inspect` should find. u, delayed, with its dead band cut out, is followed with a lag by s."""

    kind: str = "rate"
    """Whether `gain · s` is a position, a rate or an acceleration."""
    delay: int = 2
    dead_band: float = 0.0
    gain: float = 1.0
    lag_steps: float = 4.0
    noise: float = 0.0
    drift: float = 0.0
    """Rate at the neutral command."""
    mixing: tuple[tuple[float, ...], ...] = ((1.0,),)
    """Which channel (column) moves which position (row)."""
    velocities: bool = False
    """Whether rates are measured."""
    half_range: float = 1.0
    neutral: float = 0.0
    limit: float = 3.0
    start: float = 0.0
    steps: int = 100
    """Control steps per trajectory; a push takes a fifth."""
    period_s: float = PERIOD_S


def probe_spec(truth: Truth) -> ControlSpec:
    positions, channels = np.shape(truth.mixing)
    names = tuple(f"p{i}" for i in range(positions))
    measured = names + (tuple(f"v{i}" for i in range(positions)) if truth.velocities else ())
    ones = (1.0,) * len(measured)
    return ControlSpec(
        robot="probe",
        period_s=truth.period_s,
        layout=StateLayout(
            measured=measured,
            position=tuple(range(positions)),
            velocity=tuple(range(positions, 2 * positions)) if truth.velocities else (),
            commands=tuple(f"u{i}" for i in range(channels)),
            command_memory=1,
        ),
        kinematics=SelectedOutput((0,)),
        preview=(1,),
        scales=Scales((0.0,) * len(measured), ones, ones, 0.3, 0.3),
        limits=Limits(
            (truth.neutral - truth.half_range,) * channels,
            (truth.neutral + truth.half_range,) * channels,
            (-truth.limit,) * positions,
            (truth.limit,) * positions,
        ),
        reference=ReferenceSpec(space="output", steps=truth.steps, rate_low=(-1.0,), rate_high=(1.0,)),
    )


class ProbeRobot(AbstractRobot):
    """Steps the difference equations; every command it was ever sent is in `sent`."""

    def __init__(self, truth: Truth, *, seed: int = 0, before_play: Callable[[int], None] | None = None) -> None:
        spec = probe_spec(truth)
        self.truth = truth
        self.task = Task(
            spec, tracking_cost(spec, length_scale=1.0), _no_goals, _no_references, 1.0, (0.0,) * len(truth.mixing)
        )
        self.rng = np.random.default_rng(seed)
        self.mixing = np.asarray(truth.mixing)
        positions, channels = self.mixing.shape
        self.position, self.rate = np.full(positions, truth.start), np.zeros(positions)
        self.lagged = np.zeros(channels)
        self.line = [np.zeros(channels)] * truth.delay
        self.sent: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.plays, self.before_play = 0, before_play
        self.last = self._measure()

    def _measure(self) -> np.ndarray:
        both = [self.position, self.rate] if self.truth.velocities else [self.position]
        exact = np.concatenate(both)
        return (exact + self.truth.noise * self.rng.normal(size=exact.shape)).astype(np.float32)

    def measured(self) -> np.ndarray:
        return self.last

    def play(self, commands: np.ndarray) -> np.ndarray:
        if self.before_play is not None:
            self.before_play(self.plays)
        self.plays += 1
        rows = [self.last]
        for command in commands:
            self._step(np.asarray(command, float))
            rows.append(self._measure())
        self.last = rows[-1]
        return np.stack(rows)

    def _step(self, command: np.ndarray) -> None:
        truth = self.truth
        self.sent.append(command)
        self.line.append(command - truth.neutral)
        u = self.line.pop(0)
        beyond = np.sign(u) * np.maximum(np.abs(u) - truth.dead_band, 0.0)
        self.lagged = self.lagged + (1 - np.exp(-1 / truth.lag_steps)) * (beyond - self.lagged)
        effect = truth.gain * self.mixing @ self.lagged
        if truth.kind == "position":
            new = effect + truth.start
            self.position, self.rate = new, (new - self.position) / truth.period_s
        elif truth.kind == "rate":
            self.rate = effect + truth.drift
            self.position = self.position + truth.period_s * self.rate
        else:
            self.rate = self.rate + truth.period_s * effect
            self.position = self.position + truth.period_s * self.rate
        self.positions.append(self.position)

    def run_episode(self, policy: Any, goals: Any, excitation: Any = None) -> Any:
        raise NotImplementedError

    def follow(self, policy: Any, references: Any) -> Any:
        raise NotImplementedError

    def snapshot(self) -> Any:
        return {}

    def restore(self, snapshot: Any) -> None:
        pass


class UnstableRobot(ProbeRobot):
    """Falls away from zero by a tenth per period; ends where it is more than 0.2 away, and starts anew near zero."""

    def _step(self, command: np.ndarray) -> None:
        self.sent.append(command)
        self.line.append(command)
        u = self.line.pop(0)
        self.position = 1.1 * self.position + PERIOD_S * self.truth.gain * u + 1e-4 * self.rng.normal(size=1)

    def play(self, commands: np.ndarray) -> np.ndarray:
        rows = np.full((len(commands) + 1, 1), np.nan, np.float32)
        rows[0] = self.last
        for k, command in enumerate(commands):
            self._step(np.asarray(command, float))
            self.last = self._measure()
            if abs(self.position[0]) > 0.2:
                self.position = 0.01 * self.rng.normal(size=1)
                self.line = [np.zeros(1)] * self.truth.delay
                self.last = self._measure()
                break
            rows[k + 1] = self.last
        return rows


def _no_goals(rng: np.random.Generator, measured: np.ndarray, count: int) -> np.ndarray:
    raise NotImplementedError


def _no_references(speed: float) -> tuple[EvaluationReference, ...]:
    raise NotImplementedError
