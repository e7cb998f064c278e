"""What ten minutes of old data in the buffer bring to the first episodes on the excavator.

    python benchmarks/prior_data.py [--seeds 0 1 2] [--episodes 4] [--minutes 10] [--only NAME ...]

Two logs are made: random motion (`firsthand simulator record`, a run folder) and a clumsy PI controller that follows
joint references (a CSV file). Both go through the same reader as `firsthand train --data`. The variants without
practice or with excitation show what each part of the warm start is worth; the last one learns on top of the PI
controller that made the log. Prints a table and writes
benchmarks/results/prior-data.json.
"""

import argparse
import csv
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from firsthand.logs.csv_file import column_names
from firsthand.robots.description import ROBOT_DESCRIPTION
from firsthand.robots.registry import make_robot, make_task
from firsthand.runs import RunFolder
from firsthand.simulators import record
from firsthand.training import Trainer, TrainingConfig, prior
from firsthand.training.base_guard import BaseGuard
from firsthand.training.bases import BASE_EXCITATION, Base
from firsthand.training.origin import BaseOrigin
from firsthand.training.parts import NoSupervisor
from firsthand_onboard import ControlSpec
from firsthand_onboard.base_control import PIBase
from firsthand_onboard.features import quintic_blend
from firsthand_onboard.kinematics import tracked_output

RESULTS = Path(__file__).parent / "results" / "prior-data.json"
ON_TOP = "clumsy PI, on top of that PI"
GENTLE = "clumsy PI, gently excited"
VARIANTS = {
    "nothing": (None, True, False),
    "random motion": ("random", True, False),
    "clumsy PI": ("pi", True, False),
    "random motion, policy not practised": ("random", False, False),
    "clumsy PI, policy not practised": ("pi", False, False),
    "random motion, first episode excited": ("random", True, True),
    ON_TOP: ("pi", False, True),
    GENTLE: ("pi", True, False),
}
"""Name to (log, whether the policy practises on the model, whether the first episode is excited all the same)."""


def random_log(folder: Path, minutes: float) -> Path:
    task = make_task("excavator")
    robot = make_robot("excavator", task, seed=1)
    config = {"robot": "excavator", ROBOT_DESCRIPTION: robot.description().as_dict()}
    with RunFolder.create(folder / "random", config, provenance={}) as run:
        for number, episode in enumerate(record(robot, minutes, seed=1), start=1):
            run.save_episode(number, episode.arrays(), {})
    return folder / "random"


def pi_log(folder: Path, minutes: float) -> tuple[Path, float]:
    """A PI controller in joint space with one gain for all joints, and no idea of dead band and dead time."""
    task = make_task("excavator")
    spec = task.spec
    plant = make_robot("excavator", task).plant
    assert plant is not None
    rng = np.random.default_rng(2)
    solo = np.asarray(spec.scales.measured_scale[4:])
    direction = np.asarray([-1.0, 1.0, 1.0, 1.0])
    key = jax.random.key(0)
    steps = task.steps

    @jax.jit
    def follow(state, integral, reference):
        def step(carry, target):
            state, integral = carry
            measured = plant.measure(state, key=key)
            error = target - measured[:4]
            integral = integral + spec.period_s * error
            command = jnp.clip(jnp.asarray(direction / solo) * (1.5 * error + 0.3 * integral), -1.0, 1.0)
            return (plant.step(state, command, key=key), integral), (measured, command)

        return jax.lax.scan(step, (state, integral), reference)

    state, integral = plant.reset(jnp.asarray(task.home)), jnp.zeros(4)
    at = np.asarray(task.home)
    measured, commands, errors = [], [], []
    for _ in range(round(60 * minutes / (steps * spec.period_s))):
        goal = task.sample_goals(rng, np.concatenate([at, np.zeros(4)]), 1)[0]
        reference = at + quintic_blend(np.linspace(0, 1, steps))[:, None] * (goal - at)
        (state, integral), (y, u) = follow(state, integral, jnp.asarray(reference))
        both = np.concatenate([reference, np.zeros((steps, 4))], axis=1)
        away = np.asarray(tracked_output(spec, np.asarray(y, float))) - np.asarray(tracked_output(spec, both))
        errors.append(np.linalg.norm(away, axis=1).mean())
        measured.append(np.asarray(y))
        commands.append(np.asarray(u))
        at = goal
    y, u = np.concatenate(measured), np.concatenate(commands)
    path = folder / "pi.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(column_names(spec))
        for k in range(len(y)):
            writer.writerow([f"{k * spec.period_s:.3f}", *map(str, y[k]), *map(str, u[k])])
    return path, float(np.mean(errors))


def clumsy_base(spec: ControlSpec) -> Base:
    """The PI controller of the log, which follows the tip's reference by inverse kinematics: no dead band, no lag."""
    solo, count = np.asarray(spec.scales.measured_scale[4:]), len(spec.layout.position)
    linear = np.stack([np.stack([np.asarray([0.0, 1.0]), np.asarray([0.0, speed])]) for speed in solo])
    sign = np.asarray([-1.0, 1.0, 1.0, 1.0])
    return Base(
        BaseOrigin("clumsy PI"), PIBase(np.full(count, 1.5), np.full(count, 5.0), np.zeros(count), sign, linear, linear)
    )


def run(log: Path | None, practised: bool, excited: bool, variant: str, seed: int, episodes: int, tick) -> dict:
    on_top = variant == ON_TOP
    changes = {} if practised else {"imagination.practice_episodes": 0}
    if variant == GENTLE:
        changes |= {"excitation.log_share": 0.3}
    if on_top:
        changes |= {"excitation.amplitude": BASE_EXCITATION["add"]}
    config = TrainingConfig.of("excavator", "fast", episodes=episodes, seed=seed, changes=changes)
    task = make_task(config.robot)
    start = prior.gather(task.spec, data=[log] if log else [])
    robot = make_robot("excavator", task, seed=seed)
    supervisor = None
    if on_top:
        start = replace(start, base=clumsy_base(task.spec))
        supervisor = BaseGuard(task.spec, NoSupervisor(), start.base_settings)
    trainer = Trainer(robot, config, prior=start, supervisor=supervisor, keep_going=True)
    errors: list[float] = []
    motion = mock.patch.object(prior.Prior, "has_seen_motion", new=not excited and bool(start.rows))
    with motion:
        while trainer.episode < episodes:
            errors.append(trainer.run_episode().metrics["tracking_error"])
            tick(errors[-1])
    return {"seed": seed, "error_m": errors}


def round_values(value):
    """Numbers with five digits: raw data small enough to keep."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, list):
        return [round_values(v) for v in value]
    return {k: round_values(v) for k, v in value.items()} if isinstance(value, dict) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    console = Console()
    results = json.loads(RESULTS.read_text())["variants"] if RESULTS.exists() else {}
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[error]}"), TimeRemainingColumn())
    with tempfile.TemporaryDirectory() as name, Progress(*columns, console=console) as progress:
        total = len(options.only) * len(options.seeds) * options.episodes
        bar = progress.add_task("making logs", total=total, error="")
        random = random_log(Path(name), options.minutes)
        pi, pi_error = pi_log(Path(name), options.minutes)
        logs = {None: None, "random": random, "pi": pi}

        def tick(error: float) -> None:
            progress.update(bar, advance=1, error=f"{100 * error:.1f} cm")

        for seed in options.seeds:
            for variant in options.only:
                log, practised, excited = VARIANTS[variant]
                progress.update(bar, description=f"{variant}, seed {seed}")
                done = run(logs[log], practised, excited, variant, seed, options.episodes, tick)
                others = [r for r in results.get(variant, []) if r["seed"] != seed]
                results[variant] = sorted([*others, done], key=lambda r: r["seed"])
                content = {"minutes": options.minutes, "pi_error": pi_error, "variants": results}
                RESULTS.write_text(json.dumps(round_values(content), indent=1) + "\n")
    table = Table(
        title=f"Mean error in cm (median of seeds {options.seeds}); fast preset; {options.minutes:g} min of data"
    )
    table.add_column("before the first episode")
    for episode in range(1, options.episodes + 1):
        table.add_column(f"episode {episode}", justify="right")
    for variant in options.only:
        runs = [r["error_m"] for r in results[variant] if r["seed"] in options.seeds]
        table.add_row(variant, *(f"{e:.1f}" for e in 100 * np.median(runs, axis=0)))
    console.print(table)
    console.print(f"The PI controller's own mean tip error: {100 * pi_error:.0f} cm.")
    console.print(f"wrote {RESULTS}")


if __name__ == "__main__":
    main()
