"""A simple simulated robot to begin with: each command sets the speed of one axis, which follows with a lag."""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

Numbers = float | Sequence[float] | np.ndarray


class ServoAxes(gymnasium.Env):
    """Axes under velocity servos, as most arms have them: a stand-in until your own robot is connected.

    Command i sets the speed of position i, in its unit per second; the speed follows with a first-order lag and ends at
    the stops. There is no gravity and no coupling. It observes all positions, then all velocities. Where
    `command_low` lists fewer commands than positions the others stay where they are; more commands do nothing.

    Args:
        low: lower stop per axis.
        high: upper stop per axis.
        speed: highest speed per axis.
        period_s: control period.
        lag_s: time constant of the servos; 0 for none.
        home: where a reset puts it; by default the middle between the stops.
        command_low: command at full speed towards `low`; by default −speed.
        command_high: command at full speed towards `high`; by default speed.
        has_velocities: whether velocities are observed.
    """

    stand_in = True
    """What `firsthand check` reminds the user of."""

    def __init__(
        self,
        *,
        low: Sequence[float] | np.ndarray,
        high: Sequence[float] | np.ndarray,
        speed: Numbers,
        period_s: float,
        lag_s: float = 0.1,
        home: Sequence[float] | np.ndarray | None = None,
        command_low: Numbers | None = None,
        command_high: Numbers | None = None,
        has_velocities: bool = True,
    ) -> None:
        self.low, self.high = np.asarray(low, float), np.asarray(high, float)
        count = len(self.low)
        self.speed = np.broadcast_to(np.asarray(speed, float), count)
        self.dt, self.has_velocities = period_s, has_velocities
        self.follow = 1.0 if lag_s <= 0 else 1.0 - math.exp(-period_s / lag_s)
        self.home = (
            (self.low + self.high) / 2 if home is None else np.clip(np.asarray(home, float), self.low, self.high)
        )
        driven = next((len(v) for v in (command_low, command_high) if isinstance(v, Sequence | np.ndarray)), count)
        shape = (driven,)
        speeds = np.resize(self.speed, shape)
        least = -speeds if command_low is None else np.broadcast_to(np.asarray(command_low, float), shape)
        most = speeds if command_high is None else np.broadcast_to(np.asarray(command_high, float), shape)
        self.middle, self.half = (least + most) / 2, (most - least) / 2
        self.action_space = gymnasium.spaces.Box(least.astype(np.float32), most.astype(np.float32))
        size = 2 * count if has_velocities else count
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,))
        self.position, self.velocity = self.home.copy(), np.zeros(count)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """At home, at rest."""
        super().reset(seed=seed)
        return self.place(self.home), {}

    def place(self, position: Sequence[float] | np.ndarray) -> np.ndarray:
        """At rest at these positions; what is observed there."""
        self.position, self.velocity = np.array(position, float), np.zeros(len(self.low))
        return self._observe()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """One control period."""
        shares = np.clip((np.asarray(action, float) - self.middle) / self.half, -1.0, 1.0)
        moved_by = min(len(shares), len(self.speed))
        wanted = np.zeros(len(self.speed))
        wanted[:moved_by] = self.speed[:moved_by] * shares[:moved_by]
        before = self.velocity
        self.velocity = before + self.follow * (wanted - before)
        moved = self.position + self.dt * (before + self.velocity) / 2
        self.position = np.clip(moved, self.low, self.high)
        self.velocity = np.where(moved == self.position, self.velocity, 0.0)
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> np.ndarray:
        parts = [self.position, self.velocity] if self.has_velocities else [self.position]
        return np.concatenate(parts)


def place_axes(env: Any, position: np.ndarray) -> np.ndarray:
    """`GymnasiumTask.place` for `ServoAxes`, wrapped or not."""
    return env.unwrapped.place(position)
