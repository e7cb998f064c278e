"""Pressures, flows and power of the realistic excavator in three motions, as a picture."""

from pathlib import Path

import numpy as np

from firsthand.errors import UserError
from firsthand.plants.excavator.characterize_effects import hydraulic_power, run_machine
from firsthand.plants.excavator.geometry import JOINTS
from firsthand.plants.excavator.parameters import PERIOD_S
from firsthand.plants.excavator.realistic import ExcavatorRealistic

MOTIONS = (
    ("boom up alone, 1000 kg", 1000.0, (0.8, 0.0, 0.0, 0.0)),
    ("all joints, empty", 0.0, (0.8, 0.8, 0.8, 0.8)),
    ("all joints, dipper out, 1500 kg", 1500.0, (1.0, -1.0, 1.0, 1.0)),
)
"""Name, payload in kg, command. The command lasts from 0.2 to 2.2 s."""
STEPS, ON = 100, slice(5, 55)


def draw_hydraulics(path: Path, plant: ExcavatorRealistic | None = None) -> None:
    """A row per motion: the higher pressure of each cylinder, flows and power over time, as a PNG file."""
    if path.suffix.lower() != ".png":
        raise UserError(f"plots is {path}, but must be a file that ends in .png.")
    from matplotlib.figure import Figure

    plant = plant or ExcavatorRealistic().at_work()
    commands = np.zeros((len(MOTIONS), STEPS, 4))
    for run, (_, _, command) in enumerate(MOTIONS):
        commands[run, ON] = command
    states = run_machine(plant, np.asarray([kg for _, kg, _ in MOTIONS]), commands)
    power = hydraulic_power(states) / 1e3
    time = PERIOD_S * np.arange(1, STEPS + 1)
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(len(MOTIONS), 3, sharex=True)
    for run, (name, _, _) in enumerate(MOTIONS):
        pressure, flow, watts = axes[run]
        for joint, label in enumerate(JOINTS):
            higher = np.maximum(states.bore[run, :, joint], states.rod[run, :, joint])
            pressure.plot(time, higher, label=label, linewidth=1)
            flow.plot(time, states.flow[run, :, joint], label=label, linewidth=1)
        pressure.plot(time, states.supply[run], "k", label="supply", linewidth=1.3)
        flow.plot(time, states.pump.flow[run], "k", label="pump", linewidth=1.3)
        watts.plot(time, power[run], "k", linewidth=1.3)
        watts.axhline(plant.sizes.power / 1e3, color="tab:red", linestyle=":", label="limit")
        pressure.set_ylabel(f"{name}\npressure, bar")
        flow.set_ylabel("flow, l/min")
        watts.set_ylabel("power, kW")
        watts.set_ylim(0, 130)
    for axis in axes[0]:
        axis.legend(fontsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("time, s")
    try:
        figure.savefig(path, dpi=70)
    except OSError as error:
        raise UserError(f"plots cannot be written to {path}: {error.strerror}.") from None
