"""What regret is counted against: the best fixed policy in hindsight that we can find.

The best policy of all learners, whether the last one or that of an episode, is trained on with the plant's true
gradients, on the very references of the run and from the very states in which its trajectories began. Nobody knows the
optimum φ*; what is found costs at least as much, so the regret against it is at most the true one, and the sum of all
costs is at least.
"""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from firsthand.models import Policy
from firsthand.plants.base import AbstractPlant
from firsthand.tasks import Task

from .gradients import Starts, trajectory_costs

RATE, RATE_END = 5e-4, 0.05
BATCH = 20


def improve_policy(
    plant: AbstractPlant,
    task: Task,
    candidates: Sequence[Policy],
    starts: Starts,
    references: Float[Array, "trajectories points outputs"],
    *,
    steps: int,
    seed: int = 0,
    report: Callable[[int], None] | None = None,
) -> tuple[Policy, Float[np.ndarray, " trajectories"]]:
    """The best of `candidates` and of what Adam makes of it on these trajectories, and its cost on each of them."""
    judged = [(p, np.asarray(_costs(plant, task, p, starts, references))) for p in candidates]
    best = min(judged, key=_mean_cost)
    if steps == 0:
        return best
    candidate, moments = best[0], _optimizer(steps).init(eqx.filter(best[0], eqx.is_array))
    for i in range(steps):
        key = jax.random.fold_in(jax.random.key(seed), i)
        candidate, moments = _advance(plant, task, candidate, moments, starts, references, key, steps)
        if report is not None and i % 20 == 19:
            report(i + 1)
    return min(best, (candidate, np.asarray(_costs(plant, task, candidate, starts, references))), key=_mean_cost)


def _mean_cost(judged: tuple[Policy, np.ndarray]) -> float:
    return float(np.nan_to_num(judged[1].mean(), nan=np.inf))


def _optimizer(steps: int) -> optax.GradientTransformation:
    schedule = optax.cosine_decay_schedule(RATE, max(steps, 1), RATE_END)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))


@eqx.filter_jit
def _costs(plant, task, policy, starts, references):
    return trajectory_costs(plant, policy, task.spec, task.cost, starts, references)


@eqx.filter_jit
def _advance(plant, task, policy, moments, starts, references, key, steps: int):
    rows = jax.random.randint(key, (BATCH,), 0, references.shape[0])
    part = jax.tree.map(lambda leaf: leaf[rows], starts)

    def cost(policy):
        return trajectory_costs(plant, policy, task.spec, task.cost, part, references[rows]).mean()

    gradient = jax.tree.map(lambda g: jnp.nan_to_num(g, posinf=0.0, neginf=0.0), eqx.filter_grad(cost)(policy))
    updates, moments = _optimizer(steps).update(gradient, moments)
    return eqx.apply_updates(policy, updates), moments
