"""How fast TD-MPC2 is on one core: time per action, per update, and steps per second with both.

    taskset -c 0 python benchmarks/tdmpc2_speed.py [--repeats 20] [--json FILE]

Sizes are those of dm_control's cartpole (5 observations, 1 action). The official code's figures, measured on one core
with its smallest size, stand beside ours. Times are of the processor (`cpu`) and of the clock (`wall`): on a machine
that is busy with other things only the first can be compared.
"""

import argparse
import dataclasses
import os
import time
from pathlib import Path

# One thread, as the figures that it is compared with.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from rich.console import Console
from rich.table import Table

from firsthand.runs import atomic
from firsthand_lab.baselines import tdmpc2

SETTINGS = ("default", "official_smallest", "reduced")
OBSERVATION, ACTION, EPISODE = 5, 1, 500
OFFICIAL = {"parameters": 1.2e6, "action_ms": 410.0, "steps_per_s": 1.4}
"""The official PyTorch code, one core, smallest size: parameters, time per action, steps/s with one update each."""


def filled_agent(config: tdmpc2.Config) -> tdmpc2.Agent:
    """An agent with its seed episodes behind it; the numbers are random, the times do not depend on them."""
    agent = tdmpc2.Agent(dataclasses.replace(config, capacity=10_000), OBSERVATION, ACTION, seed=0, episode_length=500)
    rng = np.random.default_rng(0)
    for step in range(agent.seed_steps):
        now, then = rng.standard_normal((2, OBSERVATION))
        t = step % EPISODE
        agent.remember(now, rng.uniform(-1, 1, ACTION), rng.uniform(), then, first=t == 0, last=t == EPISODE - 1)
    return agent


def medians(function, repeats: int) -> tuple[float, float]:
    """Median milliseconds of processor and of clock; the first call, which compiles, is not counted."""
    function()
    times = []
    for _ in range(repeats):
        cpu, wall = time.process_time(), time.perf_counter()
        function()
        times.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpu, wall = 1e3 * np.median(times, axis=0)
    return float(cpu), float(wall)


def measure(name: str, repeats: int) -> dict:
    config: tdmpc2.Config = getattr(tdmpc2, name)()
    agent = filled_agent(config)
    observation = np.zeros(OBSERVATION)
    action_cpu, action_wall = medians(lambda: agent.act(observation, first=False, explore=True), repeats)
    update_cpu, update_wall = medians(lambda: agent.learn(1), repeats)
    share = config.updates_per_step
    return {
        "setting": name,
        "parameters": agent.parameters,
        "members": config.members,
        "updates_per_step": share,
        "action_ms": round(action_cpu, 1),
        "action_wall_ms": round(action_wall, 1),
        "update_ms": round(update_cpu, 1),
        "update_wall_ms": round(update_wall, 1),
        "steps_per_s": round(1e3 / (action_cpu + share * update_cpu), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = [measure(name, arguments.repeats) for name in arguments.settings]

    table = Table(title="TD-MPC2 on one core: processor time (clock in brackets)")
    for heading in (
        "setting",
        "parameters",
        "Q functions",
        "ms per action",
        "ms per update",
        "updates/step",
        "steps/s",
    ):
        table.add_column(heading, justify="right")
    for r in rows:
        table.add_row(
            r["setting"],
            f"{r['parameters'] / 1e6:.2f} M",
            str(r["members"]),
            f"{r['action_ms']:.0f} ({r['action_wall_ms']:.0f})",
            f"{r['update_ms']:.0f} ({r['update_wall_ms']:.0f})",
            f"{r['updates_per_step']:g}",
            f"{r['steps_per_s']:.1f}",
        )
    official = f"{OFFICIAL['parameters'] / 1e6:.1f} M"
    table.add_row("official code", official, "2", f"{OFFICIAL['action_ms']:.0f}", "", "1", f"{OFFICIAL['steps_per_s']}")
    Console().print(table)
    if arguments.json:
        atomic.write_json(arguments.json, {"ours": rows, "official": OFFICIAL, "busy": os.getloadavg()[0]})


if __name__ == "__main__":
    main()
