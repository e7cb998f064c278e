"""How fast a learned simulator runs on one core, beside the flow-source excavator that it imitates.

    python benchmarks/simulator_speed.py [SIM]

Without a SIM folder a network of the default size with random weights is timed: its speed is the same. Both plants take
turns, and the ratio is what counts on a busy machine.
"""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from firsthand.logs import Series
from firsthand.plants.excavator import ExcavatorFlow
from firsthand.robots.registry import make_task
from firsthand.robots.stored_simulator import StoredSimulator
from firsthand.simulators import FitSettings
from firsthand.simulators.fit import make_untrained_plant

STEPS, REPEATS, BATCH = 20_000, 7, 20


@eqx.filter_jit
def run(plant, position, commands):
    key = jax.random.key(0)

    def step(state, command):
        return plant.step(state, command, key=key), None

    return jax.lax.scan(step, plant.reset(position), commands)[0]


def main() -> None:
    task = make_task("excavator")
    rng = np.random.default_rng(0)
    if len(sys.argv) > 1:
        simulator = StoredSimulator.open(sys.argv[1]).plant()
    else:
        log = Series(rng.normal(size=(50, 8)).astype(np.float32), rng.uniform(-1, 1, (49, 4)).astype(np.float32))
        simulator = make_untrained_plant(task.spec, [log], FitSettings())
    plants = {"learned simulator": simulator, "flow-source plant": ExcavatorFlow()}
    home = jnp.asarray(task.home)
    single = jnp.asarray(rng.uniform(-1, 1, (STEPS, 4)), jnp.float32)
    many = single.reshape(BATCH, STEPS // BATCH, 4)
    together = eqx.filter_vmap(run, in_axes=(None, None, 0))
    times: dict[tuple[str, str], list[float]] = {}
    for repeat in range(REPEATS + 1):
        for name, plant in plants.items():
            for batch, function, commands in (("1", run, single), (str(BATCH), together, many)):
                began = time.perf_counter()
                jax.block_until_ready(function(plant, home, commands))
                if repeat:  # the first compiles
                    times.setdefault((name, batch), []).append(time.perf_counter() - began)
    table = Table(title="Control steps per second on one core")
    for heading in ("plant", "batch 1", f"batch {BATCH}"):
        table.add_column(heading, justify="left" if heading == "plant" else "right")
    for name in plants:
        table.add_row(name, *(f"{STEPS / min(times[name, batch]):,.0f}" for batch in ("1", str(BATCH))))
    ratio = [min(times["flow-source plant", b]) / min(times["learned simulator", b]) for b in ("1", str(BATCH))]
    table.add_row("ratio", *(f"{r:.2f}" for r in ratio))
    console = Console()
    console.print(table)


if __name__ == "__main__":
    main()
