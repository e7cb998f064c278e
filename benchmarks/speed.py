"""The speed of everything that has to be fast, as ratios of times taken in one run: what `make bench` prints.

    python benchmarks/speed.py [--quick] [--only update plants export observer link] [--out FILE]

update     time of an update over the robot time of its episode, in a real run on excavator-realistic with its sensors:
           before refinement and with it. The first two updates, which compile, are left out.
plants     how many times faster than real time each simulated robot runs, one at a time, on one core
export     time of a step in numpy over that in exported C, without and with the observer
observer   time of observer and policy over that of the policy alone, in numpy
link       time of a job over the link beyond the robot's own, as a share of it

Each ratio is of medians. Ratios depend less on the machine than times do, but a busy one still spoils those of the
link and the update: the load is printed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from firsthand.models import Controller, Dynamics, Observer, Policy
from firsthand.robots.registry import ROBOTS, make_robot, make_task
from firsthand.tasks import excavator_task
from firsthand.training import Trainer, TrainingConfig

COMPILING = 2
"""First updates, which are left out."""
EPISODES = 24
"""Of the real run: refinement begins before."""
PLANT_STEPS = 2_000
QUICK = {"model.steps": 10, "policy_step.steps": 2, "refinement.batch": 2, "imagination.trajectories": 2}


@dataclass(frozen=True)
class Ratio:
    """One line of the table."""

    part: str
    what: str
    ratio: float
    wanted: str = ""


def update(quick: bool) -> list[Ratio]:
    """Updates of a real run over the robot's time."""
    name = "excavator" if quick else "excavator-realistic"
    changes = dict(QUICK) if quick else {}
    episodes = COMPILING + 1 if quick else EPISODES
    task = make_task(name)
    config = TrainingConfig.of(name, "fast", episodes=episodes, seed=0, changes=changes)
    trainer = Trainer(make_robot(name, task, seed=0), config, keep_going=True)
    found: dict[bool, list[float]] = {False: [], True: []}
    while trainer.episode < episodes:
        metrics = trainer.run_episode().metrics
        if trainer.episode > COMPILING:
            found[bool(metrics["refined"])].append(metrics["update_time_s"] / task.episode_s)
    rows = [("before refinement", found[False]), ("with refinement", found[True])]
    return [
        Ratio("update", f"update / robot time, {what} ({len(r)} updates)", statistics.median(r), "≤ 0.12")
        for what, r in rows
        if r
    ]


def plants(quick: bool) -> list[Ratio]:
    """Simulated over real time, of every robot that is a plant."""
    import plant_speed  # keeps this process on one core from here on

    rng, rows = np.random.default_rng(0), []
    for name in ROBOTS:
        task = make_task(name)
        plant = make_robot(name, task).plant
        if plant is None:
            continue
        steps = 100 if quick else PLANT_STEPS
        commands = jnp.asarray(rng.uniform(-1, 1, (steps, plant.num_commands)).round(1))
        _, best = plant_speed.time_call(eqx.filter_jit(plant_speed.run), plant, jnp.asarray(task.home), commands)
        rows.append(Ratio("plants", f"{name}: simulated / real time", steps * task.spec.period_s / best))
    return rows


def _controllers() -> tuple[Controller, Controller, np.ndarray]:
    import export_latency

    spec = excavator_task().spec
    policy = Policy.random(spec, key=jax.random.key(0), last_gain=1.0)
    observer = Observer.register(Dynamics.random(spec, export_latency.HIDDEN, key=jax.random.key(1)))
    noise = np.random.default_rng(0).normal(size=(export_latency.INPUTS, spec.layout.num_measured))
    measured = np.asarray(spec.scales.measured_center) + 0.1 * np.asarray(spec.scales.change_scale) * noise
    return Controller(policy), Controller(policy, observer), measured.astype(np.float32)


def export(quick: bool) -> list[Ratio]:
    """numpy over exported C."""
    import export_latency

    alone, both, measured = _controllers()
    rows = []
    for what, controller in (("policy", alone), ("policy and observer", both)):
        both_ways = (export_latency.numpy_times, export_latency.c_times)
        times = [float(np.median(time_steps(controller, measured))) for time_steps in both_ways]
        rows.append(Ratio("export", f"{what}: numpy / C", times[0] / times[1]))
    return rows


def observer(quick: bool) -> list[Ratio]:
    """What the observer adds to a step in numpy."""
    import export_latency

    alone, both, measured = _controllers()
    times = [float(np.median(export_latency.numpy_times(c, measured))) for c in (both, alone)]
    return [Ratio("observer", "policy and observer / policy, numpy", times[0] / times[1])]


def link(quick: bool) -> list[Ratio]:
    """The link's share of the robot's time."""
    import onboard_latency

    share = onboard_latency.link(5 if quick else 15)["link_share_percent"] / 100
    return [Ratio("link", "time beyond the robot's own / robot time", share)]


PARTS: dict[str, Callable[[bool], list[Ratio]]] = {
    "update": update,
    "plants": plants,
    "export": export,
    "observer": observer,
    "link": link,
}


def measure(part: str, quick: bool) -> list[Ratio]:
    """One part, in a process of its own: some set threads and cores for themselves."""
    command = [sys.executable, __file__, "--part", part, *(["--quick"] if quick else [])]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [Ratio(**row) for row in json.loads(ran.stdout.splitlines()[-1])]


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small numbers, for a test that it runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        print(json.dumps([asdict(row) for row in PARTS[given.part](given.quick)]))
        return
    began, load = time.monotonic(), os.getloadavg()[0]
    rows = [row for name in given.only for row in measure(name, given.quick)]
    title = f"Speed as ratios (load {load:.1f} when it began, {time.monotonic() - began:.0f} s)"
    table = Table("part", "ratio of", "", "wanted", title=title)
    for row in rows:
        table.add_row(row.part, row.what, f"{row.ratio:.3g}", row.wanted)
    Console().print(table)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"load": load, "ratios": [asdict(row) for row in rows]}, indent=2)
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
