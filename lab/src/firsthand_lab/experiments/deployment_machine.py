"""The machine of `deployment`: the pressure-model excavator with noisy sensors and oil that warms up while it works.

`firsthand-onboard simulate --plant firsthand_lab.experiments.deployment_machine:WorkingExcavator --plant-option …`
plays it in a process of its own.
"""

import json

import jax.numpy as jnp
import numpy as np

from firsthand.plants.excavator import ExcavatorPressure
from firsthand.plants.sensors import Sensors, sense
from firsthand.robots.simulated_machine import MachinePlant
from firsthand.tasks import excavator_task

from .learning import tuples

COLD_C, WARM_C = 30.0, 75.0
"""Oil in the morning, and after hours of work."""


def oil_after(elapsed_s: float, warming_rate: float) -> float:
    """The oil temperature after this much work, in °C: dT/dt = rate · (warm − T)."""
    return WARM_C - (WARM_C - COLD_C) * float(np.exp(-warming_rate * elapsed_s))


class WorkingExcavator(MachinePlant):
    """All options are text, as they come from a command line."""

    def __init__(
        self,
        position_noise: str = "0",
        velocity_noise: str = "0",
        warming_rate: str = "0",
        elapsed_s: str = "0",
        task: str = "{}",
        seed: str = "0",
    ) -> None:
        oil = oil_after(float(elapsed_s), float(warming_rate))
        rate, now, warm = (jnp.asarray(value, float) for value in (float(warming_rate), oil, WARM_C))
        plant = ExcavatorPressure(warming_rate=rate, oil_temperature_c=now, working_oil_c=warm)
        made = excavator_task(**tuples(json.loads(task)))
        sensors = Sensors(noise=(*(float(position_noise),) * 4, *(float(velocity_noise),) * 4))
        super().__init__(sense(plant, sensors.for_entries(made.spec.layout.measured)), made, seed=int(seed))
