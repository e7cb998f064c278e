"""How fast a preset learns: tracking error on random references and on the evaluation shapes, over several seeds.

    python benchmarks/learning.py --preset paper --episodes 200 --seeds 0 1 2 [--robot excavator] [--oracle]
    python benchmarks/learning.py --preset fast --episodes 25 --seeds 0 1 2 3 4
    python benchmarks/learning.py --robot soft-arm --preset paper --episodes 30 --seeds 0 1 2

Prints a table and writes benchmarks/results/ROBOT-PRESET.json. Takes about a minute per hundred episodes and core with
the paper preset. Seeds run one after the other in one process, so that everything is compiled once.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from firsthand.cache import cache_folder
from firsthand.evaluation import evaluate
from firsthand.evaluation.oracle import cached_oracle, store_oracle, train_oracle
from firsthand.robots import SimulatedRobot
from firsthand.robots.registry import make_robot
from firsthand.training import Trainer, TrainingConfig

RESULTS = Path(__file__).parent / "results"
MARKS = {
    "paper": (5, 10, 20, 25, 30, 50, 100, 150, 200, 300, 400),
    "fast": (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 40, 60),
}
"""After so many episodes the shapes are run."""


def run(robot_name: str, preset: str, episodes: int, seed: int, tick) -> dict:
    """One seed: the error of every episode, and the shapes at the marks."""
    config = TrainingConfig.of(robot_name, preset, episodes=episodes, seed=seed)
    robot = make_robot(robot_name, config.make_task(), seed=seed)
    trainer = Trainer(robot, config)
    errors, losses, updates, shapes = [], [], [], {}
    while trainer.episode < episodes:
        metrics = trainer.run_episode().metrics
        errors.append(metrics["tracking_error_m"])
        losses.append(metrics["model_loss"])
        updates.append(metrics["update_time_s"])
        if trainer.episode in MARKS[preset]:
            result = evaluate(robot, trainer.state.policy)
            shapes[trainer.episode] = {
                "together": result.overall.mean_error_m,
                "max": result.overall.max_error_m,
                **{r.name: m.mean_error_m for r, m in zip(result.references, result.metrics, strict=True)},
            }
        tick(errors[-1])
    names = [reference.name for reference in robot.task.evaluation(robot.task.evaluation_speed)]
    curves = {"error_m": errors, "model_loss": losses, "update_time_s": updates}
    return {"seed": seed, "names": names, **curves, "shapes": shapes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robot", default="excavator")
    parser.add_argument("--preset", default="paper", choices=tuple(MARKS))
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--oracle", action="store_true", help="compute the oracle if it is not cached (minutes)")
    options = parser.parse_args()
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[error]}"), TimeRemainingColumn())
    runs = []
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(options.preset, total=options.episodes * len(options.seeds), error="")
        for seed in options.seeds:
            runs.append(
                run(
                    options.robot,
                    options.preset,
                    options.episodes,
                    seed,
                    lambda error: progress.update(bar, advance=1, error=f"{100 * error:.1f} cm"),
                )
            )
    config = TrainingConfig.of(options.robot, options.preset)
    task = config.make_task()
    robot = make_robot(options.robot, task)
    assert isinstance(robot, SimulatedRobot)
    plant = robot.plant
    oracle = cached_oracle(plant, task, cache_folder() / "oracles")
    if oracle is None and options.oracle:
        oracle = train_oracle(plant, task)[1]
        store_oracle(oracle, plant, task, cache_folder() / "oracles")

    window = 10 if options.preset == "paper" else 1
    table = Table(title=f"{options.robot}, preset {options.preset}, mean error in cm, {len(runs)} seeds")
    for heading in (
        "episode",
        "robot time",
        "random references" if window == 1 else f"random references (mean of {window})",
        "per seed",
        ", ".join(name for name in runs[0]["names"]),
        "per seed",
    ):
        table.add_column(heading, justify="right")
    for mark in [m for m in MARKS[options.preset] if m <= options.episodes]:
        # Early on a shorter mean: the first, bad episodes say nothing about where learning is now.
        count = min(window, max(mark // 2, 1))
        random = [100 * float(np.mean(r["error_m"][mark - count : mark])) for r in runs]
        shapes = [100 * r["shapes"][mark]["together"] for r in runs]
        table.add_row(
            str(mark),
            f"{mark * task.episode_s / 60:.0f} min",
            f"{np.mean(random):.1f} (median {np.median(random):.1f})",
            " ".join(f"{v:.1f}" for v in random),
            f"{np.mean(shapes):.1f} (median {np.median(shapes):.1f})",
            " ".join(f"{v:.1f}" for v in shapes),
        )
    console.print(table)
    update = float(np.median([t for r in runs for t in r["update_time_s"][1:]]))
    console.print(f"update: median {update:.2f} s, {100 * update / task.episode_s:.1f} % of the robot's own time")
    if oracle is not None:
        console.print(
            f"oracle: {100 * oracle.random_error_m:.2f} cm random, {100 * oracle.shapes_error_m:.2f} cm shapes"
        )
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{options.robot}-{options.preset}.json"
    path.write_text(json.dumps({"robot": options.robot, "preset": options.preset, "runs": rounded(runs)}, indent=1))
    console.print(f"wrote {path}")


def rounded(value):
    """Numbers with five digits: raw data small enough to keep."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return {k: rounded(v) for k, v in value.items()} if isinstance(value, dict) else value


if __name__ == "__main__":
    main()
