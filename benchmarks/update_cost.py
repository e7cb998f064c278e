"""What an update costs: compared with the robot's own time, with ten times the horizon, with ten times the parameters.

    python benchmarks/update_cost.py [--repeats 5]

All ratios are of medians taken in one run, alternating the cases, because machines are noisy.
"""

import argparse
import dataclasses
import statistics
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from firsthand.agent import Buffer, LearnerState, Settings, append, update_model, update_policy
from firsthand.optim.rollout import Rollout
from firsthand.tasks import Task, excavator_task
from firsthand.training.learning import draw_imagined_starts
from firsthand.training.presets import PRESETS

EPISODES_IN_BUFFER = 40


def synthetic_episode(task: Task, rng: np.random.Generator) -> Rollout:
    """An episode of plausible numbers; what an update costs does not depend on their values."""
    spec, steps, count = task.spec, task.steps, task.trajectories
    center = np.concatenate([spec.scales.measured_center] * (1 + spec.layout.measurement_memory))
    states = np.zeros((count, steps + 1, spec.layout.size), np.float32)
    states[..., : len(center)] = center + 0.01 * rng.standard_normal((count, steps + 1, len(center)))
    commands = 0.1 * rng.standard_normal((count, steps, spec.layout.num_commands)).astype(np.float32)
    previews = 5 + 0.1 * rng.standard_normal((count, steps, 1 + len(spec.preview), spec.num_outputs))
    states, commands, previews = (jnp.asarray(a, jnp.float32) for a in (states, commands, previews))
    return Rollout(states, commands, previews, jnp.ones(commands.shape, bool), jnp.ones((count, steps), bool))


def prepare(task: Task, settings: Settings, *, refined: bool = False):
    """A function that does one episode's update and waits for it, returning the seconds for model and policy."""
    rng = np.random.default_rng(0)
    rollout = synthetic_episode(task, rng)
    spec = task.spec
    buffer = Buffer.empty(
        EPISODES_IN_BUFFER * task.trajectories * task.steps,
        spec.layout.size,
        spec.layout.num_commands,
        spec.layout.num_measured,
    )
    for _ in range(min(EPISODES_IN_BUFFER, 10)):
        buffer = append(buffer, rollout)
    state = LearnerState.random(spec, settings, seed=0)
    if refined:
        state = eqx.tree_at(lambda s: s.radius, state, jnp.asarray(settings.trust_region.max_radius, jnp.float32))
    record = dataclasses.make_dataclass("Starts", ["starts"])(np.asarray(rollout.states[:, 0]))
    imagined = draw_imagined_starts(task, record, settings.imagined_trajectories, rng)  # pyright: ignore[reportArgumentType]

    def update() -> tuple[float, float]:
        began = time.perf_counter()
        after, model = update_model(state, buffer, rollout, settings)
        jax.block_until_ready(after)
        between = time.perf_counter()
        jax.block_until_ready(update_policy(after, task.cost, rollout, imagined, model, settings))
        return between - began, time.perf_counter() - between

    update()
    return update


def medians(updates: dict, repeats: int) -> dict[str, tuple[float, float]]:
    times: dict[str, list] = {name: [] for name in updates}
    for _ in range(repeats):
        for name, update in updates.items():
            times[name].append(update())
    return {
        name: (statistics.median(t[0] for t in rows), statistics.median(t[1] for t in rows))
        for name, rows in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    console = Console()

    task = excavator_task()
    table = Table(title=f"One episode's update, {task.episode_s:.0f} s of robot time")
    for heading in ("preset", "model s", "policy s", "share of robot time"):
        table.add_column(heading, justify="right")
    updates = {n: prepare(task, h) for n, h in PRESETS.items()}
    updates["fast, refined"] = prepare(task, PRESETS["fast"], refined=True)
    for name, (model, policy) in medians(updates, repeats).items():
        table.add_row(name, f"{model:.2f}", f"{policy:.2f}", f"{100 * (model + policy) / task.episode_s:.1f} %")
    console.print(table)

    # The same work per transition in both: ten times the horizon brings ten times the Adam batch.
    paper = PRESETS["paper"]
    table = Table(title="Growth, policy update of the paper preset (and the model's, at equal work per transition)")
    for heading in ("case", "policy", "model"):
        table.add_column(heading, justify="right")
    settings = paper.with_changes(
        {
            "model.batch": 128,
            "model.max_batch": 128,
            "model.steps": 50,
            "policy_step.cg_iterations": 20,
            "policy_step.cg_tolerance": 1e-9,
        }
    )
    short, long = excavator_task(steps=125), excavator_task(steps=1250)
    wide = settings.with_changes({"model.batch": 1280, "model.max_batch": 1280})
    result = medians({"H": prepare(short, settings), "10 H": prepare(long, wide)}, repeats)
    table.add_row("10 × horizon", *(f"{result['10 H'][i] / result['H'][i]:.1f} ×" for i in (1, 0)))
    small, large = (96, 96), (396, 396)
    sizes = {}
    for name, hidden in (("n", small), ("10 n", large)):
        case = excavator_task(hidden=hidden)
        sizes[name] = prepare(case, settings.with_changes({"model.hidden": hidden}))
    counts = [
        sum(
            np.prod(w.shape) + b.size
            for w, b in LearnerState.random(
                excavator_task(hidden=h).spec, settings.with_changes({"model.hidden": h}), seed=0
            ).policy.layers
        )
        for h in (small, large)
    ]
    result = medians(sizes, repeats)
    table.add_row(
        f"{counts[1] / counts[0]:.1f} × parameters", *(f"{result['10 n'][i] / result['n'][i]:.1f} ×" for i in (1, 0))
    )
    console.print(table)


if __name__ == "__main__":
    main()
