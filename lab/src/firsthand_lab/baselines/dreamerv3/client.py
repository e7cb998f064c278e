"""The robot as a Gymnasium environment, at the other end of a `Link`. It runs in the learner's process."""

# pyright: reportMissingImports=false

import gymnasium
import numpy as np
from protocol import NEXT, RESET, SEEN, STEP, Ended, Link, numbers


class RobotClient(gymnasium.Env):
    """A robot in another process: an episode here is a trajectory there. It is truncated, never terminated."""

    def __init__(self, link: Link, observation_size: int, action_size: int) -> None:
        self._link = link
        self._size = observation_size
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (observation_size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (action_size,), np.float32)

    def reset(self, *, seed: "int | None" = None, options: "dict | None" = None) -> "tuple[np.ndarray, dict]":
        """The next trajectory begins where the robot is."""
        super().reset(seed=seed)
        return self._ask(RESET, None, SEEN, self._size).copy(), {}

    def step(self, action: np.ndarray) -> "tuple[np.ndarray, float, bool, bool, dict]":
        """Apply an action for one control period."""
        row = self._ask(STEP, np.asarray(action, np.float32), NEXT, 2 + self._size)
        return row[2:].copy(), float(row[0]), False, bool(row[1]), {}

    def _ask(self, kind: bytes, content: "np.ndarray | None", answer: bytes, columns: int) -> np.ndarray:
        try:
            self._link.send(kind, content)
            rows = numbers(self._link.receive(answer)[1], columns)
        except Ended as error:
            # No ordinary exception: sheeprl would take it for a broken environment and start another one.
            raise SystemExit(f"DreamerV3 stops: {error}.") from error
        return rows[0]
