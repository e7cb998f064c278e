"""A Gymnasium wrapper for trying out dead time."""

from collections import deque
from typing import Any

import gymnasium
import numpy as np


class DelayedCommands(gymnasium.Wrapper):
    """Each action reaches the environment `steps` control periods late; until then the middle of the range acts."""

    def __init__(self, env: gymnasium.Env, steps: int) -> None:
        super().__init__(env)
        if steps < 0:
            raise ValueError(f"steps is {steps}, but must be at least 0")
        self.steps = steps
        self._waiting: deque[np.ndarray] = deque()

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Nothing is on its way after a reset."""
        space = self.env.action_space
        assert isinstance(space, gymnasium.spaces.Box)
        neutral = ((space.low.astype(float) + space.high) / 2).astype(space.dtype)
        self._waiting = deque([neutral] * self.steps)
        return self.env.reset(**options)

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Send the oldest action that waits."""
        self._waiting.append(action)
        return self.env.step(self._waiting.popleft())
