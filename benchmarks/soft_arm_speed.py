"""How fast the soft arm runs on one core.

    python benchmarks/soft_arm_speed.py

Batch 1 is one arm in a jitted scan; the gradient is that of a tip position cost over 20 trajectories of 120 steps with
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

from firsthand.plants.soft_arm import SoftArm
from firsthand.plants.soft_arm.geometry import straight

KEY = jax.random.key(0)
BATCH, STEPS, SINGLE = 20, 120, 20_000


def run(plant, commands):
    def step(state, command):
        return plant.step(state, command, key=KEY), None

    return jax.lax.scan(step, plant.reset(jnp.asarray(straight(plant.parameters.length_m))), commands)[0]


def cost(commands, plant):
    def step(state, command):
        state = plant.step(state, command, key=KEY)
        return state, jnp.sum(plant.measure(state, key=KEY)[6:8] ** 2)

    def one(commands):
        start = plant.reset(jnp.asarray(straight(plant.parameters.length_m)))
        return jnp.mean(jax.lax.scan(step, start, commands)[1])

    return jnp.mean(jax.vmap(one)(commands))


def timed(function, *arguments, repeats=5):
    """(first call, best later call) in seconds."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return times[0], min(times[1:])


def main():
    rng = np.random.default_rng(0)
    plant = SoftArm()
    single = jnp.asarray(rng.uniform(-1, 1, (SINGLE, 6)))
    many = jnp.asarray(rng.uniform(-1, 1, (BATCH, STEPS, 6)))
    first, best = timed(eqx.filter_jit(run), plant, single)
    _, batched = timed(eqx.filter_jit(jax.vmap(run, (None, 0))), plant, many)
    first_gradient, gradient = timed(eqx.filter_jit(jax.grad(cost)), many, plant)
    table = Table(title="The soft arm on one core")
    for heading in ("steps/s, batch 1", f"steps/s, batch {BATCH}", "compile", "gradient", "compile"):
        table.add_column(heading, justify="right")
    table.add_row(
        f"{SINGLE / best:,.0f}",
        f"{BATCH * STEPS / batched:,.0f}",
        f"{first - best:.1f} s",
        f"{1e3 * gradient:.0f} ms",
        f"{first_gradient - gradient:.1f} s",
    )
    Console().print(table)


if __name__ == "__main__":
    main()
