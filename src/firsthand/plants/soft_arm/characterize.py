"""Measures the soft arm's responses and lays them beside the facts.

How each figure is taken:

- *bend in use*: size of every segment's bend during slow random commands over the whole range;
- *stiffness*: moment per bend of one segment with the motors locked and the other segments held, gravity not counted;
  *softest direction*: least eigenvalue of the same with all segments free and gravity counted. Below zero it buckles;
- *mode, ζ*: eigenvalues of the upright arm, linearised without cable friction; each mode exists in x and in y;
- *creep*: a step that holds the tip at 0.17 m, a − b exp(−t/τ) fitted to the tip's way from 1.5 to 30 s: share b/a,
  time τ;
- *open loop*: commands that hold the tip on a circle, played in 12.6 s per turn without looking, scaled by one number
  so that the empty, exact arm draws the circle of 100 mm at its size; root mean square of the radial error, as the
  motion capture sees it, over the circles of 80, 100 and 120 mm, each in eight runs with pretension and friction of
  their own;
- *hysteresis*: where the tip is at zero command, coming from 0.17 m on one side in 5 s and then from the other side;
  creep has its part in it;
- *tension left*: of a cable that slides, behind 90° of wrap;
- *command for …*: the largest command that holds the tip there, over 24 directions, segments bent alike.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from firsthand.plants.excavator.characterize import Row
from firsthand.plants.soft_arm.arm import SoftArm, SoftArmState
from firsthand.plants.soft_arm.body import elastic_torques, inertia
from firsthand.plants.soft_arm.cables import cable_torques, tensions
from firsthand.plants.soft_arm.geometry import segment_ends, straight
from firsthand.plants.soft_arm.parameters import PERIOD_S, ArmEffects

RUNS, CHUNK = 8, 60
"""Runs simulated side by side, and control periods per compiled call."""
LONG = 600
"""Control periods of the longest experiments: 30 s."""
TURN_S = 12.6
CIRCLES_M = (0.08, 0.10, 0.12)
LOAD_KG = 0.05


class Response(NamedTuple):
    """The results of each command, `(runs, steps, …)`."""

    bends: Any
    motors: Any
    slip: Any
    tension: Any
    ends: Any
    """Where the segment ends really are."""
    seen: Any
    """The motion capture's measurement without noise."""


@eqx.filter_jit
def _rest(plant):
    """Upright."""
    return plant.reset(jnp.asarray(straight(plant.parameters.length_m)))


@eqx.filter_jit
def _chunk(plant, loads, states, commands, key):
    def one(load, state, commands, key):
        loaded = plant.with_payload(load)

        def step(state, inputs):
            command, step_key = inputs
            s = loaded.step(state, command, key=step_key)
            tension = tensions(s.bends, s.motors, plant.parameters, plant.pretension(s))
            ends = segment_ends(s.bends, plant.parameters.length_m).reshape(9)
            return s, Response(s.bends, s.motors, s.slip, tension, ends, plant.measure(s, key=step_key))

        return jax.lax.scan(step, state, (commands, jax.random.split(key, commands.shape[0])))

    return jax.vmap(one)(loads, states, commands, jax.random.split(key, RUNS))


def respond(
    plant: SoftArm,
    commands: Float[np.ndarray, "runs steps 6"],
    loads: Float[np.ndarray, " runs"],
    start: SoftArmState | None = None,
    *,
    seed: int = 0,
    worn: bool = False,
) -> Response:
    """What the arm does under these commands with these tip loads, from rest upright unless another start is given.

    `worn` arms have run for long: their pretension has drifted as far as it does. At most `RUNS` runs. They go in
    chunks of fixed size, so that every experiment shares one compiled function.
    """
    runs, steps = commands.shape[:2]
    full = np.zeros((RUNS, -(-steps // CHUNK) * CHUNK, 6))
    full[:runs, :steps] = commands
    weights = np.zeros(RUNS)
    weights[:runs] = loads
    states = jax.tree.map(lambda leaf: jnp.tile(leaf, (RUNS, 1)), _rest(plant) if start is None else start)
    key, found = jax.random.key(seed), []
    if worn and plant.effects.pretension:
        drifted = jax.random.normal(jax.random.fold_in(key, 2**31), states.tightness.shape, states.tightness.dtype)
        states = states._replace(tightness=drifted)
    for i, chunk in enumerate(np.split(full, full.shape[1] // CHUNK, axis=1)):
        step_key = jax.random.fold_in(key, i)
        states, response = _chunk(plant, jnp.asarray(weights), states, jnp.asarray(chunk), step_key)
        found.append(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), response))
    return Response(*(np.concatenate(parts, axis=1)[:runs, :steps] for parts in zip(*found, strict=True)))


def even_bends(plant: SoftArm, radius: np.ndarray, angle: np.ndarray) -> Float[np.ndarray, "points 6"]:
    """Bends, alike in all segments, that put the tip at this distance from the axis in this direction."""
    length = 3 * plant.parameters.length_m
    total = np.linspace(1e-6, 2.0, 2001)
    bend = np.interp(radius, length * (1 - np.cos(total)) / total, total) / 3
    return np.tile(bend[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1), (1, 3))


_hold = eqx.filter_jit(lambda plant, bends: jax.vmap(plant.holding_command)(bends))


def holding_commands(plant: SoftArm, radius: np.ndarray, angle: np.ndarray) -> Float[np.ndarray, "points 6"]:
    """Commands that hold the tip there, segments bent alike."""
    count = len(radius)
    bends = np.zeros((LONG, 6))
    bends[:count] = even_bends(plant, radius, angle)
    return np.asarray(_hold(plant, jnp.asarray(bends)), np.float64)[:count]


def random_commands(rng: np.random.Generator, runs: int, steps: int) -> np.ndarray:
    """Filtered noise with a time constant of 1 s and standard deviation 0.6, clipped to [-1, 1]."""
    keep = np.exp(-PERIOD_S)
    walk = np.zeros((runs, steps, 6))
    for k in range(1, steps):
        walk[:, k] = keep * walk[:, k - 1] + np.sqrt(1 - keep**2) * rng.standard_normal((runs, 6))
    return np.clip(0.6 * walk, -1.0, 1.0)


def _in_use(plant: SoftArm) -> Iterator[Row]:
    response = respond(plant, random_commands(np.random.default_rng(0), RUNS, LONG), np.zeros(RUNS))
    bend = np.degrees(np.linalg.norm(response.bends.reshape(RUNS, LONG, 3, 2), axis=-1))
    for name, value, fact in (
        ("mean", bend.mean(), 19.0),
        ("95 %", np.percentile(bend, 95), 36.0),
        ("largest", bend.max(), 57.0),
    ):
        yield Row(f"bend of a segment in use, {name}", "°", 0.7 * fact, 1.3 * fact, float(value), "S")
    yield Row("least tension of a cable in use", "N", 0.0, plant.parameters.pretension_n, response.tension.min(), "E")
    velocity = (response.ends[:, 2:] - response.ends[:, :-2]) / (2 * PERIOD_S)
    offset = response.ends - response.seen
    behind = (offset - offset.mean(axis=(0, 1)))[:, 1:-1]  # markers sit beside the ends
    delay = float(np.sum(behind * velocity) / np.sum(velocity**2))
    yield Row("delay of the motion capture", "ms", 9.0, 11.0, 1e3 * delay, "E")


@eqx.filter_jit
def _stiffness(plant, load, with_gravity):
    p = plant.parameters
    zero, nine = jnp.zeros(6), jnp.zeros(9)

    def torque(bends):
        cables = cable_torques(bends, tensions(bends, nine, p), nine, p)
        return cables + elastic_torques(bends, zero, p) + with_gravity * inertia(bends, load, p).gravity

    return -jax.jacfwd(torque)(zero)


@eqx.filter_jit
def _flow(plant, rest, dt):
    """∂(bends, rates) after a very short time over before, at rest."""
    p = plant.parameters
    around = inertia(rest.bends, plant.payload_kg, p)
    admittance = plant.admittance(around, dt)

    def after(x):
        state = rest._replace(bends=x[:6], rates=x[6:])
        state = plant.substep(state, jnp.zeros(9), inertia(x[:6], plant.payload_kg, p), admittance, dt)
        return jnp.concatenate([state.bends, state.rates])

    return jax.jacfwd(after)(jnp.zeros(12))


def _statics(plant: SoftArm) -> Iterator[Row]:
    p = plant.parameters
    yield Row("height, upright", "m", 0.8, 1.1, straight(p.length_m)[-1], "E")
    yield Row("stiffness of a helicoid alone", "N m/rad", 0.19, 2.0, p.helicoid_stiffness, "S")
    bare = np.asarray(_stiffness(plant, jnp.zeros(()), jnp.zeros(())))
    for j, name in enumerate(("lower", "middle", "upper")):
        yield Row(f"stiffness, {name} segment", "N m/rad", 2.0, 8.0, float(bare[2 * j, 2 * j]), "E")
    for name, load in (("empty", 0.0), ("50 g", LOAD_KG)):
        least = float(
            np.linalg.eigvalsh(np.asarray(_stiffness(plant, jnp.asarray(load), jnp.ones(())), np.float64)).min()
        )
        yield Row(f"softest direction against gravity, {name}", "N m/rad", 0.05, 8.0, least, "E")
    dt = 1e-4
    values = np.linalg.eigvals((np.asarray(_flow(plant, _rest(plant), dt), np.float64) - np.eye(12)) / dt)
    ratios = sorted((abs(v), -v.real / abs(v)) for v in values if v.imag > 0)
    for name, (_, ratio) in zip(("lowest", "middle", "highest"), ratios[::2], strict=True):
        yield Row(f"ζ of the {name} mode", "", 0.3, 0.5, float(ratio), "E")
    around = np.linspace(0.0, 2 * np.pi, 24, endpoint=False)
    for name, radius in (("the circle, 0.25 m", 0.25), ("the square's corners, 0.283 m", 0.2 * np.sqrt(2))):
        largest = np.abs(holding_commands(plant, np.full(24, radius), around)).max()
        yield Row(f"command for {name}", "of 1", 0.0, 0.9, float(largest), "E")


def _circle(plant: SoftArm, radius: float) -> np.ndarray:
    """Three seconds out to the circle, then twice round."""
    out, turn = 60, round(2 * TURN_S / PERIOD_S)
    phase = np.concatenate([np.zeros(out), np.linspace(0, 4 * np.pi, turn)])
    rise = np.linspace(0, 1, out)
    share = np.concatenate([rise * rise * (3 - 2 * rise), np.ones(turn)])
    return holding_commands(plant, radius * share, phase)


def _radial(shown: np.ndarray, radius: float) -> np.ndarray:
    """Radial error of the tip in the second turn, m."""
    return np.linalg.norm(shown[..., -round(TURN_S / PERIOD_S) :, 6:8], axis=-1) - radius


def _open_loop(plant: SoftArm) -> Iterator[Row]:
    """The commands are those of the exact arm, which is all that a model of a real one knows."""
    exact = replace(plant, effects=ArmEffects.none())
    played = np.stack([_circle(exact, radius) for radius in CIRCLES_M])
    gains = np.asarray([1.0, 1.2])
    tried = respond(exact, gains[:, None, None] * played[1], np.zeros(2))
    sizes = [_radial(ends, CIRCLES_M[1]).mean() for ends in tried.ends]
    gain = gains[0] - sizes[0] * (gains[1] - gains[0]) / (sizes[1] - sizes[0])

    def radial(arm: SoftArm, load_kg: float) -> float:
        squares = []
        for seed, (commands, radius) in enumerate(zip(gain * played, CIRCLES_M, strict=True)):
            stood = np.concatenate([np.zeros((CHUNK, 6)), commands])
            runs = respond(arm, np.tile(stood, (RUNS, 1, 1)), np.full(RUNS, load_kg), seed=seed, worn=True)
            squares.append(np.mean(_radial(runs.seen, radius) ** 2))
        return 1e3 * float(np.sqrt(np.mean(squares)))

    # An arm without effects repeats itself more exactly than hardware does: only the upper end is asked for.
    least = 5.5 if plant.effects != ArmEffects.none() else 0.0
    yield Row("open loop, circles of 80 to 120 mm, empty", "mm", least, 12.6, radial(plant, 0.0), "S")
    yield Row("open loop, the same with 50 g at the tip", "mm", 21.0, 27.0, radial(plant, LOAD_KG), "S")


def _dynamics(plant: SoftArm) -> Iterator[Row]:
    held = holding_commands(plant, np.asarray([0.17]), np.zeros(1))[0]
    cycle = np.concatenate([np.linspace(0, 1, 100), np.linspace(1, -1, 200), np.linspace(-1, 1, 200)])
    commands = np.zeros((4, LONG, 6))
    commands[0] = held
    commands[1, :500] = cycle[:, None] * held
    commands[2, :, 0] = 0.05
    commands[3, :60, 4], commands[3, 60:, 4] = 1.0, -1.0
    response = respond(plant, commands, np.zeros(4))

    share, time = fit_creep(response.ends[0, :, 6])
    yield Row("creep, share", "", 0.10, 0.15, share, "E")
    yield Row("creep, time", "s", 2.0, 5.0, time, "E")
    width = 1e3 * abs(response.ends[1, 200, 6] - response.ends[1, 400, 6])
    yield Row("hysteresis of the tip at zero command", "mm", 5.0, 50.0, float(width), "E")
    sliding = float(np.abs(response.slip[1, :100]).max())
    left = float(np.exp(-plant.parameters.friction * sliding * np.pi / 2))
    yield Row("tension left behind 90° of wrap", "", np.exp(-0.2 * np.pi / 2), np.exp(-0.1 * np.pi / 2), left, "S")
    small = response.motors[2, :, 0] / (0.05 * plant.parameters.travel_m[0])
    yield Row("motor after 0.05 s of a small step", "of it", 0.58, 0.68, float(small[0]), "E")
    fastest = np.abs(np.diff(response.motors[3, :, 6])).max() / PERIOD_S
    yield Row("fastest spool", "m/s", 0.14, 0.151, float(fastest), "E")


def fit_creep(tip: np.ndarray) -> tuple[float, float]:
    """(b/a, τ) of a − b exp(−t/τ), fitted from 1.5 s on; the best τ of a fine grid, a and b by least squares."""
    time = PERIOD_S * np.arange(1, len(tip) + 1)
    use = time > 1.5
    best = (np.inf, 0.0, 0.0)
    for tau in np.geomspace(0.5, 30.0, 400):
        basis = np.stack([np.ones(use.sum()), -np.exp(-time[use] / tau)], axis=1)
        (a, b), *_ = np.linalg.lstsq(basis, tip[use], rcond=None)
        residual = float(np.sum((basis @ [a, b] - tip[use]) ** 2))
        best = min(best, (residual, float(b / a), float(tau)))
    return best[1], best[2]


def _control(plant: SoftArm) -> Iterator[Row]:
    yield Row("control rate", "Hz", 20.0, 20.0, 1 / plant.period_s, "E")


def characterize(plant: SoftArm) -> list[Row]:
    """Every response beside its fact."""
    steady = replace(plant, effects=plant.effects.without("pretension"))  # over half a minute drift looks like creep
    parts = (_statics(plant), _in_use(plant), _open_loop(plant), _dynamics(steady), _control(plant))
    return [row for part in parts for row in part]
