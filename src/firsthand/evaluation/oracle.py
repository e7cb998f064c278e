"""The oracle: the same policy class trained with the plant's true gradients. It tells what error is possible.

Backpropagation through time through the simulated plant itself, Adam with a decaying rate, a fixed budget, the best of
several random starts. Nothing here is available on a real robot.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from firsthand_onboard import SelectedOutput
from firsthand_onboard.features import build_reference, initial_state, next_state

from ..models import Policy
from ..plants.base import AbstractPlant
from ..robots.base import EpisodeRecord
from ..robots.simulated import SimulatedRobot, at_rest, neutral, track
from ..runs import atomic
from ..tasks import Task
from .evaluate import evaluate
from .metrics import tracking_metrics

VERSION = 1
"""Raise when a change of the code makes cached oracles wrong although plant and task are the same."""


@dataclass(frozen=True)
class OracleBudget:
    """How hard the oracle tries."""

    iterations: int = 4000
    """Adam iterations."""
    trajectories: int = 20
    """Trajectories per iteration."""
    starts: int = 3
    """Random initial policies, trained side by side; the best on held-out references counts."""
    rate: float = 2e-3
    """Adam's first step size; it falls to a hundredth along a cosine."""


@dataclass(frozen=True)
class OracleResult:
    """The oracle's result."""

    random_error: float
    """Mean tracking error on random references that it was not trained on."""
    shapes_error: float
    """Mean tracking error on the task's evaluation references."""
    shapes: dict[str, float]
    """The same per evaluation reference."""


def fingerprint(plant: AbstractPlant, task: Task, budget: OracleBudget) -> str:
    """A hash of everything that an oracle depends on: plant parameters, task and budget."""
    leaves, structure = jax.tree.flatten(plant)
    parts = [str(VERSION), str(structure), task.spec.to_json(), repr(budget)]
    parts += [repr(part).replace(repr(task.spec), "") for part in (task.cost, task.sample_goals)]
    parts += [repr(task.home), *(r.points.tobytes().hex() for r in task.evaluation(task.evaluation_speed))]
    parts += [
        np.asarray(leaf, np.float64).tobytes().hex() if eqx.is_array_like(leaf) else repr(leaf) for leaf in leaves
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


CHAINED = 3
"""Trajectories in a row for a robot whose goals are not configurations: it can only start at home."""


def reference_pool(task: Task, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Start positions `(count, positions)` and the references from them, drawn as in training.

    Where goals are configurations, every reference starts in the last one's goal. Where they are points of the tracked
    output, the configuration there is not known: every reference starts at home and is a chain of several.
    """
    spec = task.spec
    position = np.asarray(task.home, float)
    starts, references = [], []
    for _ in range(count):
        measured = np.zeros(spec.layout.num_measured)
        measured[list(spec.layout.position)] = position
        starts.append(position)
        if isinstance(spec.kinematics, SelectedOutput):
            references.append(_chain_references(task, measured, rng))
        else:
            goal = task.sample_goals(rng, measured, 1)[0]
            references.append(build_reference(spec, measured, goal))
            position = goal if spec.reference.space == "position" else position
    return np.stack(starts).astype(np.float32), np.stack(references).astype(np.float32)


def _chain_references(task: Task, measured: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A reference of `CHAINED` trajectories, each as if the last goal had been reached."""
    assert isinstance(task.spec.kinematics, SelectedOutput)
    tracked, parts = list(task.spec.kinematics.indices), []
    measured = measured.copy()
    for goal in task.sample_goals(rng, measured, CHAINED):
        points = np.asarray(build_reference(task.spec, measured, goal))
        parts.append(points[: task.steps])
        measured[tracked] = points[task.steps]
    return np.concatenate([*parts, points[task.steps :]])


def train_oracle(
    plant: AbstractPlant,
    task: Task,
    budget: OracleBudget = OracleBudget(),  # noqa: B008 (frozen)
    *,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> tuple[Policy, OracleResult]:
    """The best policy of `budget.starts`, and its errors on references it was not trained on."""
    rng = np.random.default_rng(seed)
    pool, held_out = (_traceable(*reference_pool(task, count, rng)) for count in (600, 100))
    policies = _train(plant, task, budget, pool, seed, progress)
    scores = _errors(plant, task, policies, held_out)
    best = int(np.nanargmin(scores))
    policy = jax.tree.map(lambda x: x[best] if eqx.is_array(x) else x, policies)
    shapes = evaluate(SimulatedRobot(plant, task), policy)
    each = {r.name: m.mean_error for r, m in zip(shapes.references, shapes.metrics, strict=True)}
    return policy, OracleResult(scores[best], shapes.overall.mean_error, each)


References = tuple[Float[Array, "count positions"], Float[Array, "count points outputs"]]
"""Start positions, and the references from them."""


def _traceable(starts: np.ndarray, references: np.ndarray) -> References:
    return jnp.asarray(starts), jnp.asarray(references)


def _follow(plant: AbstractPlant, task: Task, policy: Policy, start: Array, points: Array) -> tuple[Array, Array]:
    """Measurements and commands from a start at rest along a reference."""
    key = jax.random.key(0)
    state = at_rest(plant, task.spec, start, key=key)
    _, measured, commands, _ = track(plant, policy, task.spec, state, points, key=key)
    return measured, commands


def _cost(plant: AbstractPlant, task: Task, policy: Policy, start: Array, points: Array) -> Float[Array, ""]:
    """The task's mean cost of following one reference."""
    layout = task.spec.layout
    measured, commands = _follow(plant, task, policy, start, points)
    first = initial_state(layout, measured[0], jnp.asarray(neutral(task.spec), measured.dtype))

    def shift(state, inputs):
        command, following = inputs
        return next_state(layout, state, command, following), state

    _, states = jax.lax.scan(shift, first, (commands, measured[1:]))
    return jax.vmap(task.cost)(states, commands, points[: len(commands)]).mean()


def _train(
    plant: AbstractPlant,
    task: Task,
    budget: OracleBudget,
    pool: References,
    seed: int,
    progress: Callable[[int, float], None] | None,
) -> Policy:
    """`budget.starts` policies, stacked, trained side by side by backpropagation through the plant."""
    starts, references = pool
    keys = jax.random.split(jax.random.key(seed), budget.starts)
    policies = eqx.filter_vmap(lambda k: Policy.random(task.spec, key=k, last_gain=0.1))(keys)
    schedule = optax.cosine_decay_schedule(budget.rate, budget.iterations, alpha=0.01)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))

    def loss(policy, starts, references):
        return jax.vmap(lambda start, points: _cost(plant, task, policy, start, points))(starts, references).mean()

    @eqx.filter_jit
    def advance(policies, moments, key):
        rows = jax.random.randint(key, (budget.trajectories,), 0, starts.shape[0])

        def one(policy, moments):
            value, gradient = eqx.filter_value_and_grad(loss)(policy, starts[rows], references[rows])
            gradient = jax.tree.map(lambda g: jnp.nan_to_num(g, posinf=0.0, neginf=0.0), gradient)
            updates, moments = optimizer.update(gradient, moments, policy)
            return eqx.apply_updates(policy, updates), moments, value

        return eqx.filter_vmap(one)(policies, moments)

    moments = eqx.filter_vmap(lambda p: optimizer.init(eqx.filter(p, eqx.is_array)))(policies)
    for i in range(budget.iterations):
        policies, moments, values = advance(policies, moments, jax.random.fold_in(jax.random.key(seed + 1), i))
        if progress is not None and (i % 20 == 19 or i == budget.iterations - 1):
            progress(i + 1, float(jnp.nanmin(values)))
    return policies


def _errors(plant: AbstractPlant, task: Task, policies: Policy, held_out: References) -> list[float]:
    """The mean tracking error of each of the stacked policies."""
    starts, references = held_out

    @eqx.filter_jit
    def followed(policies):
        return eqx.filter_vmap(lambda p: jax.vmap(lambda s, r: _follow(plant, task, p, s, r))(starts, references))(
            policies
        )

    return [
        tracking_metrics(task.spec, (_record(task.spec, measured, commands, references),)).mean_error
        for measured, commands in zip(*followed(policies), strict=True)
    ]


def _record(spec, measured, commands, references) -> EpisodeRecord:
    measured, commands, references = (np.asarray(a) for a in (measured, commands, references))
    blank = np.zeros((len(measured), spec.layout.size), np.float32)
    return EpisodeRecord(
        blank, measured, commands, references, np.ones(commands.shape, bool), np.ones(commands.shape[:2], bool)
    )


def shipped_folder() -> Path:
    """Oracles that come with the package, so that a fresh machine need not compute them."""
    return Path(__file__).parent / "oracles"


def cached_oracle(
    plant: AbstractPlant,
    task: Task,
    cache: Path,
    budget: OracleBudget = OracleBudget(),  # noqa: B008 (frozen)
) -> OracleResult | None:
    """The oracle of this plant and task if it has been computed before, here or by us; otherwise None."""
    name = f"{task.name}-{fingerprint(plant, task, budget)}.json"
    for folder in (cache, shipped_folder()):
        try:
            data: dict[str, Any] = json.loads((folder / name).read_text())
            return OracleResult(**data)
        except (OSError, ValueError, TypeError):
            continue
    return None


def store_oracle(
    result: OracleResult,
    plant: AbstractPlant,
    task: Task,
    cache: Path,
    budget: OracleBudget = OracleBudget(),  # noqa: B008
) -> Path:
    """Keep an oracle's result."""
    atomic.make_folder(cache)
    path = cache / f"{task.name}-{fingerprint(plant, task, budget)}.json"
    atomic.write_json(path, asdict(result))
    return path
