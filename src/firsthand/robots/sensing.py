"""Simulated sensors around a robot that runs step by step in Python."""

import numpy as np
from jaxtyping import Float

from ..plants.sensors import Sensors, SensorState, draw_reading


class Sensing:
    """Simulated sensors around what an environment observes, with a random stream of their own."""

    def __init__(self, sensors: Sensors, seed: int) -> None:
        self._sensors = sensors.as_numpy()
        self._rng = np.random.default_rng([seed, 0x5E25])
        self._state = self._sensors.start(np.zeros(0, np.float32))

    def start(self, true: Float[np.ndarray, " measured"]) -> Float[np.ndarray, " measured"]:
        """What is shown of a robot that has been standing like this."""
        self._state = self._sensors.start(true)
        return self._read()

    def advance(self, true: Float[np.ndarray, " measured"]) -> Float[np.ndarray, " measured"]:
        """What is shown one control period later."""
        jitter = self._rng.standard_normal(len(true), np.float32)
        self._state = self._sensors.advance(self._state, true, jitter)
        return self._read()

    def shift(self, by: Float[np.ndarray, " measured"]) -> None:
        """Count angles from another turn."""
        self._state = SensorState(*(part + by for part in self._state))

    def _read(self) -> Float[np.ndarray, " measured"]:
        shown = self._sensors.read(self._state, draw_reading(self._rng, len(self._state.shown)))
        return np.asarray(shown, np.float32)
