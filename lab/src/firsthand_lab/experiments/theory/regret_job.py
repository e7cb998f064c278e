"""The job of `regret`: learners of one seed that differ in η run side by side, and every episode is taken apart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from firsthand.agent.trees import stack_settings, take_member
from firsthand.models import Policy
from firsthand.training.learning import as_rollout

from .. import files
from ..base import Report
from .comparator import improve_policy
from .gradients import Starts, trajectory_starts
from .measured import gradient_report, loop_report, model_report
from .model_regret import fitted_loss
from .setup import GroupProgress, make_group, settings_of
from .shift import transitions, variation_bound


def learn(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Leaves episodes.csv with a row per learner and episode."""
    base = settings_of(parameters)
    group = make_group({**parameters, "seeds": [parameters["seed"]] * len(parameters["etas"])})
    group.settings = stack_settings([base.with_changes({"policy_step.eta": eta}) for eta in parameters["etas"]])
    progress = GroupProgress(folder, group)
    learners = range(len(parameters["etas"]))
    while group.episode < parameters["episodes"]:
        before, now = group.state, group.snapshot()["robot"][0]
        metrics = group.run_episode()
        rows = []
        for i in learners:
            old, new, record = take_member(before, i), take_member(group.state, i), group.records[i]
            rollout = as_rollout(group.task.spec, record)
            starts = trajectory_starts(group.plant, take_member(now[0], i), record.commands, record.starts)
            measured = gradient_report(
                group.plant,
                group.task,
                base,
                old.policy,
                new.policy,
                new.dynamics,
                rollout,
                starts,
                jnp.asarray(record.references),
            )
            row = {name: float(value) for name, value in measured._asdict().items()}
            if group.episode % parameters["look_every"] == 0:
                row |= loop_report(old.policy, new.dynamics, rollout)
                key = jax.random.key(group.episode)
                row["loss_best"] = float(fitted_loss(new.dynamics, rollout, key=key, steps=parameters["refit"]))
            row |= model_report(old.dynamics, new.dynamics, rollout)
            data = transitions(rollout, group.task.spec.layout.num_measured)
            last = progress.columns["data"][-1][i] if "data" in progress.columns else data
            row["shift"], row["shift_error"] = variation_bound(last, data) if group.episode > 1 else (0.0, 0.0)
            rows.append((row, data, flatten_states(starts.plant, len(record.starts))))
        names = sorted({name for row, _, _ in rows for name in row} | set(LOOP))
        progress.columns["data"] = []  # only the newest episode's is needed
        best_cost, best_policy = _keep_best(progress, before.policy, np.asarray(metrics["cost"]), group.episode)
        progress.add(
            {
                **metrics,
                **{f"row.{n}": np.asarray([row.get(n, np.nan) for row, _, _ in rows]) for n in names},
                "data": np.stack([data for _, data, _ in rows]),
                "best_cost": best_cost,
                "best_policy": best_policy,
                "plants": np.stack([plant for _, _, plant in rows]),
                "states": np.stack([record.starts for record in group.records]),
                "references": np.stack([record.references for record in group.records]),
            }
        )
        report(group.episode, f"cost {np.mean(metrics['cost']):.3f}")
    columns = progress.stack_columns()
    unravel = ravel_pytree(take_member(group.state.policy, 0))[1]
    best = [unravel(jnp.asarray(row)) for row in columns.pop("best_policy")[-1]]
    del columns["best_cost"]
    candidates = [*(group.policy(i) for i in learners), *best]
    hindsight = np.stack(
        [_hindsight(group, columns, candidates, i, parameters["improve"], report) for i in learners], axis=1
    )
    table = {name: value for name, value in columns.items() if value.ndim == 2}
    episodes, count = hindsight.shape
    files.write_csv(
        folder / "episodes.csv",
        {
            "eta": np.tile(np.asarray(parameters["etas"]), episodes),
            "horizon": np.tile(np.asarray(parameters["horizons"]), episodes),
            "episode": np.repeat(np.arange(1, episodes + 1), count),
            **{name.removeprefix("row."): value.reshape(-1).astype(float) for name, value in table.items()},
            "hindsight_cost": hindsight.reshape(-1).astype(float),
        },
    )


def _keep_best(
    progress: GroupProgress, policies: Any, costs: np.ndarray, episode: int
) -> tuple[np.ndarray, np.ndarray]:
    """The lowest cost so far of each learner, and the policy that had it. The first episode is excited: it has none."""
    flat = np.stack([np.asarray(ravel_pytree(take_member(policies, i))[0]) for i in range(len(costs))])
    kept = [progress.columns.pop(name, [None])[-1] for name in ("best_cost", "best_policy")]
    if kept[0] is None or kept[1] is None or episode <= EXCITED + 1:
        return (costs if episode > EXCITED else np.full(costs.shape, np.inf)), flat
    better = costs < kept[0]
    return np.where(better, costs, kept[0]), np.where(better[:, None], flat, kept[1])


def flatten_states(states: Any, count: int) -> np.ndarray:
    """Plant states as rows of numbers, in the order of `ravel_pytree`."""
    return np.concatenate([np.asarray(leaf).reshape(count, -1) for leaf in jax.tree.leaves(states)], axis=1)


EXCITED = 1
"""First episodes whose commands are not the policy's alone: their cost is not its regret."""
LOOP = ("spectral_radius", "growth_per_step", "largest_product", "loss_best")
"""Quantities that are not measured in every episode."""


def _hindsight(
    group: Any, columns: dict[str, np.ndarray], candidates: Sequence[Policy], index: int, steps: int, report: Report
) -> np.ndarray:
    """What the best fixed policy found in hindsight would have cost in each episode of one learner."""
    plants, states, references = (columns[n][:, index] for n in ("plants", "states", "references"))
    episodes, trajectories = plants.shape[:2]
    template = group.plant.reset(jnp.asarray(group.task.home, jnp.float32))
    rebuild = jax.vmap(ravel_pytree(template)[1])
    starts = Starts(
        rebuild(jnp.asarray(plants.reshape(episodes * trajectories, -1))),
        jnp.asarray(states.reshape(episodes * trajectories, -1)),
    )
    paths = jnp.asarray(references.reshape(episodes * trajectories, *references.shape[2:]))
    _, costs = improve_policy(
        group.plant,
        group.task,
        candidates,
        starts,
        paths,
        steps=steps,
        report=lambda i: report(episodes, f"comparing with the best policy in hindsight, {100 * i // steps} %"),
    )
    return costs.reshape(episodes, trajectories).mean(axis=1)
