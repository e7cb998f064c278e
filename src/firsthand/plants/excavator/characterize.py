"""Measures a plant's responses and lays them beside the facts.

How each figure is taken, from the 25 Hz measurements with straight lines in between:

- *speed*: mean joint velocity 0.64 to 0.80 s after a step from rest in the reference pose; *cylinder speed*: the same
  times the moment arm at which it was taken;
- *rise to 10 %, 63 %*: time from the command until the velocity first passes that share of the speed;
- *stop*: the command returns to zero at 0.80 s; time until the velocity has fallen to 10 % of what it was then;
- *sine delay*: u = 0.5 sin ωt on one joint, phase lag of the fitted velocity divided by ω; *amplitude at 2 Hz*: that
  of the fit relative to the one at 0.25 Hz;
- *all at once*: speed of a joint when all four get the same command, relative to that joint alone;
- *mode*: |s| / 2π of the oscillatory eigenvalues s of the plant linearised at rest, spools centred;
- *end stop*: where the joint is after 12 s of full command.

A row passes inside the range given, or within 30 % where the facts give a single value.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from firsthand.plants.excavator.geometry import (
    JOINTS,
    POSITION_HIGH,
    POSITION_LOW,
    REFERENCE_POSE,
    REFERENCE_TIP,
    WORKSPACE_X,
    WORKSPACE_Z,
    forward_kinematics,
)
from firsthand.plants.excavator.linkage import cylinder_lengths, moment_arms
from firsthand.plants.excavator.loads import gravity_torque
from firsthand.plants.excavator.machine import AbstractExcavator
from firsthand.plants.excavator.parameters import BAR, PAYLOADS, PERIOD_S, stroke_factors

UNITS = ("rad", "rad", "m", "rad")
RUNS = 40
"""Runs simulated side by side."""
ON = 20
"""Control periods that a step command lasts: 0.8 s."""
SHORT, LONG = 50, 300
"""Control periods of the step experiments and of the sines and end stops."""
TOLERANCE = 0.3
SINE_AMPLITUDE = 0.5
SINE_HZ = (0.25, 0.5, 1.0, 2.0)

VELOCITY = {-1: (0.72, -0.68, -0.21, -1.25), 1: (-0.46, 0.74, 0.47, 1.70)}
CYLINDER_SPEED = {-1: (0.18, 0.295, 0.57, 0.33), 1: (0.14, 0.308, 0.63, 0.33)}
SINE_DELAY = ((0.23, 0.27), 0.23, 0.19, 0.18)


@dataclass(frozen=True)
class Row:
    """One response beside what the facts allow."""

    name: str
    unit: str
    low: float
    high: float
    measured: float
    source: str
    """"S" read in a public source, "M" measured on a public network model of the arm, "E" our estimate."""

    @property
    def ok(self) -> bool:
        """Whether the measured value is inside the range."""
        return bool(self.low <= self.measured <= self.high)


def around(value: float, tolerance: float = TOLERANCE) -> tuple[float, float]:
    """The range within `tolerance` of a single value."""
    return min(value * (1 - tolerance), value * (1 + tolerance)), max(value * (1 - tolerance), value * (1 + tolerance))


@eqx.filter_jit
def _rest(plant, start):
    return jax.vmap(plant.reset)(start)


@eqx.filter_jit
def _chunk(plant, states, commands, key):
    def one(state, commands, key):
        def step(state, inputs):
            command, key = inputs
            state = plant.step(state, command, key=key)
            return state, plant.measure(state, key=key)

        return jax.lax.scan(step, state, (commands, jax.random.split(key, commands.shape[0])))

    return jax.vmap(one)(states, commands, jax.random.split(key, commands.shape[0]))


def respond(
    plant: AbstractExcavator, start: Float[np.ndarray, "#runs 4"], commands: Float[np.ndarray, "runs steps 4"]
) -> Float[np.ndarray, "runs steps 8"]:
    """What the plant measures after each command, from rest at `start`.

    Runs in chunks of fixed size, so that every experiment shares one compiled function.
    """
    runs, steps = commands.shape[:2]
    full_start = np.tile(np.asarray(REFERENCE_POSE), (RUNS, 1))
    full = np.zeros((RUNS, -(-steps // ON) * ON, 4))
    full_start[:runs], full[:runs, :steps] = start, commands
    states = _rest(plant, jnp.asarray(full_start))
    out = []
    for i, chunk in enumerate(np.split(full, full.shape[1] // ON, axis=1)):
        states, measured = _chunk(plant, states, jnp.asarray(chunk), jax.random.key(i))
        out.append(np.asarray(measured, np.float64))
    return np.concatenate(out, axis=1)[:runs, :steps]


def _time_of(level: float, ratio: np.ndarray) -> float:
    """When `ratio`, sampled at 0.04 s, 0.08 s, ... first passes `level`, coming from 0 at time 0."""
    values = np.concatenate([[0.0], ratio])
    after = int(np.argmax(values >= level))
    if after == 0:
        return float("inf")
    before = values[after - 1]
    return PERIOD_S * (after - 1 + (level - before) / (values[after] - before))


def _fit_sine(velocity: np.ndarray, hz: float) -> tuple[float, float]:
    """(amplitude, delay in s) of the sine in `velocity`, which starts with the command; the first 4 s are left out."""
    time = PERIOD_S * np.arange(1, len(velocity) + 1)
    use = time > 4.0
    phase = 2 * np.pi * hz * time[use]
    basis = np.stack([np.sin(phase), np.cos(phase), np.ones(use.sum()), time[use]], 1)
    s, c, *_ = np.linalg.lstsq(basis, velocity[use], rcond=None)[0]
    return float(np.hypot(s, c)), float(np.mod(np.arctan2(-c, s), 2 * np.pi) / (2 * np.pi * hz))


def _one(joint: int, value: float) -> np.ndarray:
    command = np.zeros(4)
    command[joint] = value
    return command


STEP_CASES = [(joint, sign) for joint in range(4) for sign in (-1, 1)]


def _step_commands() -> np.ndarray:
    commands = np.zeros((16, SHORT, 4))
    for i, (joint, sign) in enumerate(STEP_CASES):
        commands[i, :ON] = _one(joint, float(sign))
        commands[8 + i, :ON] = _one(joint, 0.1 * sign)
    return commands


def _step_rows(out: np.ndarray) -> Iterator[Row]:
    for i, (joint, sign) in enumerate(STEP_CASES):
        name, unit = JOINTS[joint], UNITS[joint]
        label = f"{name}, u = {sign:+d}"
        velocity = out[i, :, 4 + joint]
        speed = velocity[ON - 5 : ON].mean()
        yield Row(f"speed, {label}", f"{unit}/s", *around(VELOCITY[sign][joint]), speed, "M")
        if (joint, sign) != (2, -1):  # A measured speed contradicts the one read for the retracting telescope.
            arm = np.asarray(jax.jit(jax.vmap(moment_arms))(jnp.asarray(out[i, ON - 5 : ON, :4])))[:, joint]
            cylinder = np.abs(velocity[ON - 5 : ON] * arm).mean()
            yield Row(f"cylinder speed, {label}", "m/s", *around(CYLINDER_SPEED[sign][joint]), cylinder, "S")
        yield Row(f"rise to 10 %, {label}", "s", 0.10, 0.19, _time_of(0.1, velocity[:ON] / speed), "M")
        band = (0.14, 0.20) if (joint, sign) == (2, -1) else (0.33, 0.55)
        yield Row(f"rise to 63 %, {label}", "s", *band, _time_of(0.63, velocity[:ON] / speed), "M")
        fall = 1 - velocity[ON:] / velocity[ON - 1]
        yield Row(f"stop to 10 %, {label}", "s", 0.20, 0.33, _time_of(0.9, fall), "M")
        small = out[8 + i, ON - 5 : ON, 4 + joint].mean() / speed
        yield Row(f"speed at |u| = 0.1, {name}, {'+' if sign > 0 else '-'}", "of full", 0.005, 0.08, small, "M")


def _sine_commands() -> np.ndarray:
    time = PERIOD_S * np.arange(LONG)
    commands = np.zeros((16, LONG, 4))
    for joint in range(4):
        for k, hz in enumerate(SINE_HZ):
            commands[4 * joint + k, :, joint] = SINE_AMPLITUDE * np.sin(2 * np.pi * hz * time)
    return commands


def _sine_rows(out: np.ndarray) -> Iterator[Row]:
    for joint, name in enumerate(JOINTS):
        direction = -1.0 if joint == 0 else 1.0
        fits = [_fit_sine(direction * out[4 * joint + k, :, 4 + joint], hz) for k, hz in enumerate(SINE_HZ)]
        fact = SINE_DELAY[joint]
        band = fact if isinstance(fact, tuple) else around(fact)
        for k in range(3):
            yield Row(f"sine delay, {name}, {SINE_HZ[k]} Hz", "s", *band, fits[k][1], "M")
        yield Row(f"sine amplitude at 2 Hz, {name}", "of 0.25 Hz", 0.02, 0.20, fits[3][0] / fits[0][0], "M")


TOGETHER_CASES = [(amplitude, sign) for sign in (1, -1) for amplitude in (0.4, 0.8)]


def _together_commands() -> np.ndarray:
    """Five runs per case: all joints, then each alone."""
    commands = np.zeros((20, SHORT, 4))
    for i, (amplitude, sign) in enumerate(TOGETHER_CASES):
        commands[5 * i, :ON] = amplitude * sign
        for joint in range(4):
            commands[5 * i + 1 + joint, :ON] = _one(joint, amplitude * sign)
    return commands


def _together_rows(out: np.ndarray) -> Iterator[Row]:
    speed = out[:, ON - 5 : ON, 4:].mean(1)
    for i, (amplitude, sign) in enumerate(TOGETHER_CASES):
        ratio = [speed[5 * i, j] / speed[5 * i + 1 + j, j] for j in range(4)]
        label = f"all at u = {amplitude * sign:+.1f}"
        # A starved boom is at most at a tenth of its speed; the reaction of the other joints may push it back a little.
        up = (0.32, 0.45) if amplitude == 0.4 else (-0.10, 0.10)
        boom = up if sign > 0 else (0.99, 1.09)
        yield Row(f"{label}, boom {'up' if sign > 0 else 'down'}", "of alone", *boom, ratio[0], "M")
        yield Row(f"{label}, dipper", "of alone", 0.53, 0.94, ratio[1], "M")
        yield Row(f"{label}, pitch", "of alone", 0.14, 0.76, ratio[3], "M")


def modes(plant: AbstractExcavator) -> np.ndarray:
    """Rates s in 1/s of the oscillatory modes e^(s t) at rest in the reference pose, the slowest first."""
    dt = 5e-4
    state = plant.reset(jnp.asarray(REFERENCE_POSE))
    flat, unravel = jax.flatten_util.ravel_pytree(state)

    @jax.jit
    def jacobian(flat):
        def advance(flat):
            return jax.flatten_util.ravel_pytree(plant.advance(unravel(flat), jnp.zeros(4), dt))[0]

        return jax.jacfwd(advance)(flat)

    matrix = np.asarray(jacobian(flat), np.float64)
    values = np.linalg.eigvals(matrix).astype(complex)
    rates = np.log(values[np.abs(values) > 1e-6]) / dt  # what is forgotten at once has no rate
    found = rates[rates.imag > 1.0]
    return found[np.argsort(np.abs(found))]


def mode_frequencies(plant: AbstractExcavator) -> np.ndarray:
    """Natural frequencies in Hz of these modes, ascending."""
    return np.abs(modes(plant)) / (2 * np.pi)


def _mode_rows(plant) -> Iterator[Row]:
    found = mode_frequencies(plant.oil_columns())
    yield Row("oil-column modes", "", 4.0, 4.0, float(len(found)), "M")
    if len(found) == 4:
        yield Row("lowest mode (boom)", "Hz", *around(2.0), found[0], "M")
        yield Row("second mode", "Hz", found[0], found[3], found[1], "M")
        yield Row("third mode", "Hz", found[0], found[3], found[2], "M")
        yield Row("highest mode (telescope)", "Hz", *around(15.0), found[3], "M")


def _geometry_rows() -> Iterator[Row]:
    tip = np.asarray(forward_kinematics(jnp.asarray(REFERENCE_POSE)))
    for axis, fact, value in zip("xz", REFERENCE_TIP, tip, strict=True):
        yield Row(f"tip {axis} in the reference pose", "m", fact - 0.001, fact + 0.001, float(value), "S")
    poses = jnp.tile(jnp.asarray(REFERENCE_POSE), (101, 1))
    poses = poses.at[:, 0].set(jnp.linspace(POSITION_LOW[0], POSITION_HIGH[0], 101))
    arms = np.abs(np.asarray(jax.jit(jax.vmap(moment_arms))(poses))[:, 0])
    lengths = np.asarray(jax.jit(jax.vmap(cylinder_lengths))(poses))[:, 0]
    yield Row("boom moment arm, smallest", "m", *around(0.25), float(arms.min()), "S")
    yield Row("boom moment arm, largest", "m", *around(0.40), float(arms.max()), "S")
    yield Row("boom stroke", "m", 0.615, 0.625, float(np.ptp(lengths)), "S")


def _stop_commands() -> np.ndarray:
    commands = np.zeros((8, LONG, 4))
    for joint in range(4):
        commands[2 * joint, :, joint], commands[2 * joint + 1, :, joint] = -1.0, 1.0
    return commands


def _stop_rows(out: np.ndarray) -> Iterator[Row]:
    for joint, name in enumerate(JOINTS):
        reached = np.sort(out[2 * joint : 2 * joint + 2, -1, joint])
        for label, stop, value in zip(
            ("lower", "upper"), (POSITION_LOW[joint], POSITION_HIGH[joint]), reached, strict=True
        ):
            yield Row(f"{label} end stop, {name}", UNITS[joint], stop - 0.02, stop + 0.02, float(value), "S")


def workspace_poses(count: int, seed: int = 0) -> np.ndarray:
    """Random poses inside the joint ranges whose tip lies in the workspace box."""
    low, high = np.asarray(POSITION_LOW), np.asarray(POSITION_HIGH)
    poses = np.random.default_rng(seed).uniform(low, high, (12 * count, 4))
    tips = np.asarray(jax.jit(jax.vmap(forward_kinematics))(jnp.asarray(poses)))
    inside = (
        (tips[:, 0] > WORKSPACE_X[0])
        & (tips[:, 0] < WORKSPACE_X[1])
        & (tips[:, 1] > WORKSPACE_Z[0])
        & (tips[:, 1] < WORKSPACE_Z[1])
    )
    return poses[inside][:count]


def _lifting_rows(plant) -> Iterator[Row]:
    payload = PAYLOADS["large"]
    poses = workspace_poses(2000)
    q = jnp.asarray(poses)
    force = np.asarray(jax.jit(jax.vmap(lambda q: gravity_torque(q, jnp.asarray(payload)) / moment_arms(q)))(q))
    area_plus, area_minus, sign_plus, sign_minus = stroke_factors(plant.parameters)
    pressure = np.maximum(force * sign_plus / area_plus, force * sign_minus / area_minus).max(0) / BAR
    relief = plant.parameters.relief / BAR
    for joint, name in enumerate(JOINTS):
        yield Row(f"900 kg in the box, holding pressure, {name}", "bar", 0.0, relief, float(pressure[joint]), "E")
    loaded = plant.with_payload(payload)
    for joint, sign, verb in ((0, 1, "raises"), (1, -1, "raises")):
        name = JOINTS[joint]
        room = poses[:, joint] > POSITION_LOW[joint] + 0.3
        heaviest = np.argsort(-(np.abs(force[:, joint]) * room))[:RUNS]
        commands = np.tile(_one(joint, float(sign)), (RUNS, ON, 1))
        out = respond(loaded, poses[heaviest], commands)
        slowest = -out[:, -5:, 4 + joint].mean(1).max()
        fact = abs(VELOCITY[sign][joint])
        yield Row(f"900 kg in the box, slowest {name} {verb}", "rad/s", 0.1 * fact, 2 * fact, float(slowest), "E")


def characterize(plant: AbstractExcavator) -> list[Row]:
    """Every response of an excavator plant that the facts speak about."""
    pose = np.asarray(REFERENCE_POSE)[None]
    short = respond(plant, pose, np.concatenate([_step_commands(), _together_commands()]))
    long = respond(plant, pose, np.concatenate([_sine_commands(), _stop_commands()]))
    return [
        *_step_rows(short[:16]),
        *_sine_rows(long[:16]),
        *_together_rows(short[16:]),
        *_mode_rows(plant),
        *_stop_rows(long[16:]),
        *_lifting_rows(plant),
        *_geometry_rows(),
    ]


def table(rows: list[Row]):
    """A `rich` table of the rows."""
    from rich.table import Table

    out = Table("response", "unit", "allowed", "measured", "from", "")
    for r in rows:
        out.add_row(
            r.name, r.unit, f"{r.low:.3g} … {r.high:.3g}", f"{r.measured:.3g}", r.source, "ok" if r.ok else "MISS"
        )
    return out
