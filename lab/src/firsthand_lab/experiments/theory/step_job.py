"""The job of `step-bound`: learn for a while, then scale the gradient and look how long the steps are."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from firsthand.agent import Rollout
from firsthand.agent.corrected_model import half_range
from firsthand.agent.trees import take_member
from firsthand.models import Policy
from firsthand.optim.gradient import damped_gradient
from firsthand.optim.preconditioner import preconditioned_step
from firsthand.training.learning import as_rollout

from .. import files
from ..base import Report
from .setup import GroupProgress, make_group


def measure(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Leaves learning.csv, a row per seed and episode, and sweep.csv, a row per seed, α, ε and norm."""
    group = make_group(parameters)
    progress = GroupProgress(folder, group, every=1)
    while group.episode < parameters["episodes"]:
        metrics = group.run_episode()
        progress.add({name: metrics[name] for name in ("gradient_norm", "step_norm")})
        report(group.episode, f"‖∇‖ {np.mean(metrics['gradient_norm']):.2f}")
    columns = progress.stack_columns()
    episodes, seeds = columns["step_norm"].shape
    files.write_csv(
        folder / "learning.csv",
        {
            "seed": np.tile(np.asarray(group.seeds), episodes),
            "episode": np.repeat(np.arange(1, episodes + 1), seeds),
            **{name: values.reshape(-1).astype(float) for name, values in columns.items()},
        },
    )
    rows = []
    for i, seed in enumerate(group.seeds):
        rollout = as_rollout(group.task.spec, group.records[i])
        policy, dynamics = group.policy(i), take_member(group.state.dynamics, i)
        gradient, _ = eqx.filter_jit(damped_gradient)(
            policy,
            dynamics,
            group.task.cost,
            rollout,
            max_norm=group.settings.policy_step.gradient_limit,
            discount=group.settings.policy_step.discount,
        )
        for epsilon in parameters["epsilons"]:
            norms = np.geomspace(1e-3, 1e3, parameters["points"]) * np.sqrt(epsilon)
            for alpha in parameters["alphas"]:
                steps = step_lengths(
                    policy, gradient, rollout, *(jnp.asarray(v, jnp.float32) for v in (norms, alpha, epsilon))
                )
                for norm, step in zip(norms, np.asarray(steps), strict=True):
                    row = (seed, alpha, epsilon, float(norm), float(step))
                    rows.append(dict(zip(("seed", "alpha", "epsilon", "gradient_norm", "step"), row, strict=True)))
    files.write_csv(folder / "sweep.csv", {name: [row[name] for row in rows] for name in rows[0]})


@eqx.filter_jit
def step_lengths(
    policy: Policy, gradient: Any, rollout: Rollout, norms: jax.Array, alpha: jax.Array, epsilon: jax.Array
) -> jax.Array:
    """‖Λ⁻¹∇‖ for a gradient of this direction and these norms."""
    size = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))

    def one(norm):
        scaled = jax.tree.map(lambda leaf: leaf * norm / size, gradient)
        _, found = preconditioned_step(
            policy, scaled, rollout, eta=1.0, alpha=alpha, epsilon=epsilon, command_scale=half_range(policy)
        )
        return found.step_norm

    return jax.lax.map(one, norms)
