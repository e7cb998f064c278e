"""From what a robot reported to what the learner works on."""

import jax.numpy as jnp
import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import initial_state, measured_part, next_state
from firsthand_onboard.references import build_reference

from ..agent import Imagined, Rollout
from ..logs.base import FAR
from ..robots.base import EpisodeRecord, neutral, preview_indices
from ..tasks import Task


def as_rollout(spec: ControlSpec, record: EpisodeRecord) -> Rollout:
    """The record as the learner sees it: state vectors rebuilt with the robot's own rule.

    A step whose state or outcome holds a value that is not finite or far outside its scale (a sensor that dropped out)
    does not count as valid, and its values are set to zero: it can neither enter the buffer nor spoil a gradient. Nor
    does a step count that saw a spike or a stuck sensor. A start that is not sound makes its first step invalid: the
    later ones are measured all the same, but the model cannot be rolled out from there.
    """
    steps = record.commands.shape[1]
    states = [record.starts]
    for k in range(steps):
        states.append(next_state(spec.layout, states[-1], record.commands[:, k], record.measured[:, k + 1]))
    states = np.stack(states, axis=1)
    finite = plausible(spec, states)
    strange = spikes(spec, record.measured, record.valid) | stuck(spec, record.measured)
    doubtful = remembered(strange, spec.layout.measurement_memory)
    sound = finite & ~doubtful
    usable = sound[:, :-1] & sound[:, 1:] & np.isfinite(record.commands).all(axis=-1)
    return Rollout(
        states=jnp.asarray(np.where(finite[..., None], states, np.float32(0))),
        commands=jnp.asarray(np.nan_to_num(record.commands)),
        previews=jnp.asarray(record.references[:, preview_indices(spec, steps)]),
        free=jnp.asarray(record.free),
        valid=jnp.asarray(record.valid & usable),
    )


def plausible(spec: ControlSpec, states: np.ndarray) -> np.ndarray:
    """Which states `(…, state)` hold only finite values, with every measurement within `FAR` scales of its centre."""
    center, scale = (np.asarray(v) for v in (spec.scales.measured_center, spec.scales.measured_scale))
    measured = states[..., : spec.layout.command_start].reshape(*states.shape[:-1], -1, spec.layout.num_measured)
    with np.errstate(invalid="ignore"):
        near = (np.abs(measured - center) <= FAR * scale).all(axis=(-2, -1))  # false for NaN
    return np.asarray(near & np.isfinite(states).all(axis=-1))


SPIKE = 4.0
"""A value that sticks out from its neighbours by this many times what nine in ten do …"""
SPIKE_LEAST = 5.0
"""… and by so many change scales is a spike."""
STUCK_STEPS = 25
"""A sensor that shows the same value for so many steps is suspected of being stuck …"""
STUCK_TRAVEL = 5.0
"""… and is, when position and velocity of its joint then disagree by so many change scales."""


def spikes(spec: ControlSpec, measured: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Which samples of `(trajectories, samples, measured)` hold a value that jumps out and straight back.

    Such a value is far from the median of itself and its two neighbours; a fast but lasting change is not. What is
    usual is taken from the steps that happened.
    """
    found = np.zeros(measured.shape[:2], bool)
    if measured.shape[1] < 3 or not valid[:, 1:].any():
        return found
    inner = measured[:, 1:-1]
    with np.errstate(invalid="ignore"):
        out = np.abs(inner - np.median(np.stack([measured[:, :-2], inner, measured[:, 2:]]), axis=0))
        usual = np.quantile(np.nan_to_num(out, posinf=0.0)[valid[:, 1:]], 0.9, axis=0)
        found[:, 1:-1] = (out > np.maximum(SPIKE * usual, SPIKE_LEAST * np.asarray(spec.scales.change_scale))).any(
            axis=-1
        )
    return found


def stuck(spec: ControlSpec, measured: np.ndarray) -> np.ndarray:
    """Which samples show a position or velocity that no longer changes although its partner says that it must."""
    found = np.zeros(measured.shape[:2], bool)
    samples, window = measured.shape[1], STUCK_STEPS
    if not spec.layout.velocity or samples <= window:
        return found
    position, velocity = (measured[..., list(part)] for part in (spec.layout.position, spec.layout.velocity))
    allowed = STUCK_TRAVEL * np.asarray(spec.scales.change_scale)[list(spec.layout.position)]
    with np.errstate(invalid="ignore", over="ignore"):
        # A sample that was not measured hides the way of its own periods, not that of all later ones.
        travel = np.cumsum(np.nan_to_num((velocity[:, 1:] + velocity[:, :-1]) / 2, posinf=0.0, neginf=0.0), axis=1)
        travel = travel * spec.period_s
        travel = np.concatenate([np.zeros_like(travel[:, :1]), travel], axis=1)
        apart = np.abs((position - travel)[:, window:] - (position - travel)[:, :-window]) > allowed
    for values in (position, velocity):
        same = np.cumsum(np.diff(values, axis=1) == 0, axis=1)
        same = np.concatenate([np.zeros_like(same[:, :1]), same], axis=1)
        frozen = (same[:, window:] - same[:, :-window] == window) & apart
        for trajectory, start in np.argwhere(frozen.any(axis=-1)):
            found[trajectory, start : start + window + 1] = True
    return found


def remembered(doubtful: np.ndarray, memory: int) -> np.ndarray:
    """Where a doubtful sample is in the state: in its own step and, through the measurement memory, later ones."""
    marked = doubtful.copy()
    for age in range(1, memory + 1):
        marked[:, age:] |= doubtful[:, :-age]
    return marked


def imagined_starts(
    task: Task, record: EpisodeRecord, count: int, rng: np.random.Generator, visited: np.ndarray | None = None
) -> Imagined | None:
    """Fresh references for imagined trajectories, and where they start. In turn:

    - where a trajectory of this episode started;
    - at rest in a configuration drawn like a goal (where goals are configurations): a redundant robot would otherwise
      only ever learn about the postures it happens to be in;
    - in one of the `visited` states, in mid-motion, with a new reference from there: a policy that follows well rarely
      errs, and would otherwise never learn to catch a swing.
    """
    spec = task.spec
    usable = np.flatnonzero(plausible(spec, record.starts))
    if count == 0 or usable.size == 0:
        return None
    ways = ["start", "rest"] if spec.reference.space == "position" else ["start"]
    seen = np.empty((0, spec.layout.size)) if visited is None else visited[plausible(spec, visited)]
    ways += ["visited"] if len(seen) else []
    starts, previews = record.starts[rng.choice(usable, count)], []
    for i in range(count):
        way = ways[i % len(ways)]
        if way == "visited":
            starts[i] = seen[rng.integers(len(seen))]
        measured = measured_part(spec.layout, starts[i])
        if way == "rest":
            measured = at_rest_in(spec, task.sample_goals(rng, measured, 1)[0])
            starts[i] = initial_state(spec.layout, measured, neutral(spec))
        goal = task.sample_goals(rng, measured, 1)[0].astype(np.float32)
        previews.append(build_reference(spec, measured, goal)[preview_indices(spec, task.steps)])
    return Imagined(jnp.asarray(starts), jnp.asarray(np.stack(previews)))


def visited_rows(size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Which rows of a buffer that holds `size` states imagined trajectories may start from."""
    return rng.integers(0, max(size, 1), count)


def at_rest_in(spec: ControlSpec, position: np.ndarray) -> np.ndarray:
    """The measurement of a robot that stands still in this configuration."""
    measured = np.asarray(spec.scales.measured_center, np.float32)
    measured[list(spec.layout.position)] = position
    measured[list(spec.layout.velocity)] = 0.0
    return measured


def smooth_excitation(task: Task, amplitude: float, rng: np.random.Generator) -> np.ndarray:
    """Smooth random commands `(trajectories, steps, commands)`: each channel a slow random walk that returns to zero.

    First-order filtered noise with a time constant of half a second, of standard deviation `amplitude`/2 of the half
    range and clipped at `amplitude`. The second half of each trajectory repeats the first with the opposite sign, so
    that the robot comes back to about where it was.
    """
    spec = task.spec
    half_range = (np.asarray(spec.limits.command_high) - np.asarray(spec.limits.command_low)) / 2
    keep = np.exp(-spec.period_s / 0.5)
    half = (task.steps + 1) // 2
    noise = rng.standard_normal((task.trajectories, half, len(half_range)))
    walk = np.zeros_like(noise)
    for k in range(1, half):
        walk[:, k] = keep * walk[:, k - 1] + np.sqrt(1 - keep**2) * noise[:, k]
    walk = np.concatenate([walk, -walk], axis=1)[:, : task.steps]
    return (np.clip(0.5 * walk, -1.0, 1.0) * amplitude * half_range).astype(np.float32)
