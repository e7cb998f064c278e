"""How fast the simulated robots run on one core.

    python benchmarks/plant_speed.py

Batch 1 is one robot in a jitted scan; the gradient is that of a cost on the tracked output over 20 trajectories with
respect to every command, as the oracle takes it.
"""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from firsthand.robots.registry import ROBOTS, make_robot, make_task
from firsthand_onboard.kinematics import tracked_output

KEY = jax.random.key(0)
BATCH = 20
SINGLE = {"excavator": 50_000, "excavator-pressure": 5_000, "excavator-realistic": 5_000, "soft-arm": 20_000}
"""Control steps of the run at batch 1."""


def run(plant, start, commands):
    def step(state, command):
        return plant.step(state, command, key=KEY), None

    return jax.lax.scan(step, plant.reset(start), commands)[0]


def cost(commands, plant, spec, start):
    def step(state, command):
        state = plant.step(state, command, key=KEY)
        return state, jnp.sum(tracked_output(spec, plant.measure(state, key=KEY)) ** 2)

    def one(commands):
        return jnp.mean(jax.lax.scan(step, plant.reset(start), commands)[1])

    return jnp.mean(jax.vmap(one)(commands))


def time_call(function, *arguments, repeats=5):
    """(first call, best later call) in seconds."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return times[0], min(times[1:])


def main():
    rng = np.random.default_rng(0)
    table = Table(title="Simulated robots on one core")
    for heading in ("robot", "steps/s, batch 1", f"steps/s, batch {BATCH}", "compile", "gradient", "compile"):
        table.add_column(heading, justify="left" if heading == "robot" else "right")
    for name in ROBOTS:
        task = make_task(name)
        plant, start = make_robot(name, task).plant, jnp.asarray(task.home)
        assert plant is not None
        single = jnp.asarray(rng.uniform(-1, 1, (SINGLE[name], plant.num_commands)).round(1))
        many = jnp.asarray(rng.uniform(-1, 1, (BATCH, task.steps, plant.num_commands)))
        first, best = time_call(eqx.filter_jit(run), plant, start, single)
        _, batched = time_call(eqx.filter_jit(jax.vmap(run, (None, None, 0))), plant, start, many)
        first_gradient, gradient = time_call(eqx.filter_jit(jax.grad(cost)), many, plant, task.spec, start)
        table.add_row(
            name,
            f"{len(single) / best:,.0f}",
            f"{BATCH * task.steps / batched:,.0f}",
            f"{first - best:.1f} s",
            f"{1e3 * gradient:.0f} ms",
            f"{first_gradient - gradient:.1f} s",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
