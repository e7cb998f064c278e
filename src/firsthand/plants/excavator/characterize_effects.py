"""Effects of the realistic excavator on the whole machine, beside their expected sizes.

How each figure is taken, on the machine with all effects unless it says otherwise:

- *power*: supply pressure times flow, largest mean over half a second with three or four joints at full command;
- *droop*: flow of the dipper that stretches at a command of -0.4 with 1000 kg, relative to that with none, over the
  difference of load pressures, per 200 bar;
- *hysteresis*: where a spool rests at half command, coming from 0.9 and coming from 0;
- *friction*: half the difference of the boom's cylinder force going slowly up and then down through the same places,
  over their mean;
- *Stribeck*: largest friction at low speed over that at 0.2 m/s;
- *flow noise*: standard deviation of the dipper's flow over its mean in steady motion;
- *swing*, *base*: the two slowest modes at rest, spools centred, without friction; with 1000 kg in the gripper and
  with none.
"""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from firsthand.plants.excavator.characterize import Row, modes
from firsthand.plants.excavator.friction import stribeck
from firsthand.plants.excavator.geometry import REFERENCE_POSE
from firsthand.plants.excavator.parameters import BAR, LITRE_PER_MINUTE, piston_areas
from firsthand.plants.excavator.realistic import ExcavatorRealistic

STEPS = 100
"""Control periods of each run: 4 s."""


@eqx.filter_jit
def _run(plant, payloads, starts, commands, key):
    def one(payload, start, commands, key):
        loaded = plant.with_payload(payload)

        def step(state, inputs):
            state = loaded.step(state, inputs[0], key=inputs[1])
            return state, state

        return jax.lax.scan(step, loaded.reset(start), (commands, jax.random.split(key, commands.shape[0])))[1]

    return jax.vmap(one, (0, 0, 0, None))(payloads, starts, commands, key)


def run_machine(
    plant: ExcavatorRealistic, payloads: np.ndarray, commands: np.ndarray, starts: np.ndarray | None = None
) -> Any:
    """`RealisticState` of numpy arrays after each command, `(runs, steps, …)`, from rest at `starts`.

    Noise and drift are the same in all runs.
    """
    if starts is None:
        starts = np.tile(REFERENCE_POSE, (len(commands), 1))
    key = jax.random.key(0)
    states = _run(plant, jnp.asarray(payloads, float), jnp.asarray(starts), jnp.asarray(commands), key)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), states)


def hydraulic_power(states: Any) -> np.ndarray:
    """Supply pressure times flow, W."""
    return states.supply * BAR * states.flow.sum(-1) * LITRE_PER_MINUTE


def boom_force(plant: ExcavatorRealistic, states: Any) -> np.ndarray:
    """Force of the boom's cylinder, N."""
    bore, rod = piston_areas(plant.parameters)
    return (states.bore[..., 0] * bore[0] - states.rod[..., 0] * rod[0]) * BAR


def probing_commands() -> tuple[np.ndarray, np.ndarray]:
    """(payloads, commands) of the runs behind the rows."""
    commands = np.zeros((9, STEPS, 4))
    commands[0], commands[1], commands[2] = 1.0, (1.0, -1.0, 1.0, 1.0), -1.0
    commands[3, :, 1] = commands[4, :, 1] = -0.4
    commands[8, :, 0] = 0.4
    commands[5, :, 3] = 0.5
    commands[5, 50:70, 3] = 0.9
    commands[6, :50, 0], commands[6, 50:, 0] = 0.15, -0.15
    commands[7, :, 1] = 0.4
    payloads = np.array([1500.0, 1500.0, 0.0, 0.0, 1000.0, 0.0, 0.0, 0.0, 0.0])
    return payloads, commands


def _boom_friction(plant: ExcavatorRealistic, states: Any) -> float:
    """Friction of the boom's cylinder over its force, from run 6."""
    position, force = states.position[6, :, 0], boom_force(plant, states)[6]
    up, down = slice(25, 50), slice(75, 100)
    low, high = max(position[up].min(), position[down].min()), min(position[up].max(), position[down].max())
    places = np.linspace(low, high, 20)
    rising = np.interp(places, position[up][::-1], force[up][::-1])
    falling = np.interp(places, position[down], force[down])
    return float(np.mean((rising - falling) / (rising + falling)))


def effect_rows(plant: ExcavatorRealistic) -> Iterator[Row]:
    """The figures of every effect that is on."""
    effects = plant.effects
    states = run_machine(plant, *probing_commands())
    if effects.power:
        power = max(np.convolve(one, np.full(12, 1 / 12), "valid").max() for one in hydraulic_power(states)[:3])
        yield Row("pump power, largest of three runs", "kW", 60.0, 100.0, float(power) / 1e3, "S/E")
    if effects.droop:
        flow, load = states.flow[3:5, 20:32, 1].mean(1), states.rod[3:5, 20:32, 1].mean(1)
        droop = (1 - flow[1] / flow[0]) * 200.0 / (load[1] - load[0])
        yield Row("droop of a valve over 200 bar of load", "of flow", 0.05, 0.15, float(droop), "E")
    if effects.hysteresis:
        spool = states.spool[5, :, 3]
        yield Row("hysteresis, width of the loop", "of stroke", 0.02, 0.08, float(spool[-1] - spool[49]), "E")
    if effects.friction:
        yield Row("friction of the boom's cylinder", "of force", 0.05, 0.10, _boom_friction(plant, states), "S")
        speeds = jnp.linspace(0.0, 0.2, 401)
        curve = np.asarray(stribeck(speeds, jnp.ones(401), plant.sizes).force)
        yield Row("Stribeck peak", "of friction in motion", 1.3, 1.5, float(curve.max() / curve[-1]), "S")
    if effects.noise:
        flow = states.flow[7, 30:70, 1]
        yield Row("flow noise of the dipper", "of flow", 0.008, 0.025, float(flow.std() / flow.mean()), "E")
    smooth = plant.without("friction")
    if effects.swing:
        swinging = modes(smooth.with_payload(1000.0))[0]
        yield Row("swinging payload", "Hz", 0.45, 0.55, abs(swinging) / (2 * np.pi), "E")
    if effects.base:
        pitching = modes(smooth.without("swing"))[0]
        yield Row("base pitch, oil columns in series", "Hz", 1.0, 2.0, abs(pitching) / (2 * np.pi), "E")
        yield Row("its damping ratio", "", 0.05, 0.3, -pitching.real / abs(pitching), "E")
