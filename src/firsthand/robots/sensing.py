"""Simulated sensors around a robot that runs step by step in Python."""

import numpy as np
from jaxtyping import Float

from firsthand_onboard import ControlSpec

from ..errors import UserError
from ..plants.sensors import Sensors, SensorState, draw_reading


def fit_sensors(sensors: Sensors, spec: ControlSpec) -> Sensors:
    """The same with one value per measured entry; `UserError` where a sensor would hide all that its entry can show."""
    names = spec.layout.measured
    fitted = sensors.for_entries(names)
    for field in ("noise", "resolution"):
        for name, value, scale in zip(
            names, np.asarray(getattr(fitted, field)), spec.scales.measured_scale, strict=True
        ):
            if value > 2 * scale:
                raise UserError(
                    f"sensors: {field} of {name} is {value:g}, but the whole range of {name} is {2 * scale:g}: "
                    "nothing could be seen; give less."
                )
    return fitted


class Sensing:
    """Simulated sensors around what an environment observes, with a random stream of their own."""

    def __init__(self, sensors: Sensors, seed: int) -> None:
        self._sensors = sensors.as_numpy()
        self._rng = np.random.default_rng([seed, 0x5E25])
        self._state = self._sensors.start(np.zeros(0, np.float32))

    def start(self, true: Float[np.ndarray, " measured"]) -> Float[np.ndarray, " measured"]:
        """The measurement of a robot that has been standing like this."""
        self._state = self._sensors.start(true)
        return self._read()

    def advance(self, true: Float[np.ndarray, " measured"]) -> Float[np.ndarray, " measured"]:
        """The measurement one control period later."""
        jitter = self._rng.standard_normal(len(true), np.float32)
        self._state = self._sensors.advance(self._state, true, jitter)
        return self._read()

    def shift(self, by: Float[np.ndarray, " measured"]) -> None:
        """Count angles from another turn."""
        self._state = SensorState(*(part + by for part in self._state))

    def _read(self) -> Float[np.ndarray, " measured"]:
        shown = self._sensors.read(self._state, draw_reading(self._rng, len(self._state.shown)))
        return np.asarray(shown, np.float32)
