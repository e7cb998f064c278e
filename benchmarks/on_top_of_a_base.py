"""Learning on top of a controller, and the controller alone on the same goals with the same disturbances.

    python benchmarks/on_top_of_a_base.py excavator-realistic --base pi --episodes 12 --seeds 0
    python benchmarks/on_top_of_a_base.py real-excavator --base examples/real_excavator_pd.py:controller --mode target

Seeds that the results have already are left out (`--again` runs them anew), so that a long study can be stopped and
taken up again.

With `--cycles LOG.npz` the newest policy, and at first the base, follow the work cycles of a log every five episodes.

Before each episode the robot's state is kept, the base runs the same goals alone, and the robot is put back. Prints a
line per episode, and writes benchmarks/results/on-top-of-a-base-ROBOT-MODE.json after each: errors of the learner and
of the base, their ratio, authority, and for joints that are tracked the mean absolute error per joint.
"""

import argparse
import collections
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.controllers.bases import find_base
from firsthand.evaluation import tracking_metrics
from firsthand.logs import read_cycles
from firsthand.robots.registry import find_robot
from firsthand.robots.user_file import short_name
from firsthand.training import Trainer, TrainingConfig
from firsthand.training.base_guard import BaseGuard, BaseSettings
from firsthand.training.bases import BASE_EXCITATION, FIRST_AUTHORITY
from firsthand.training.parts import NoSupervisor
from firsthand.training.prior import Prior
from firsthand_onboard import SelectedOutput

RESULTS = Path(__file__).parent / "results"


def joint_errors(record: Any, indices: tuple[int, ...]) -> list[float]:
    """Mean absolute error of each tracked joint, on the truth where it is known."""
    steps = record.commands.shape[1]
    return np.abs(record.best_known[:, :steps, list(indices)] - record.references[:, :steps]).mean((0, 1)).tolist()


def run(options: argparse.Namespace, base: Any, found: Any, seed: int, save: Any) -> None:
    changes = {"excitation.amplitude": BASE_EXCITATION[options.mode], **dict(options.change)}
    config = TrainingConfig.of(options.robot, "fast", episodes=options.episodes, seed=seed, changes=changes)
    robot, spec = found.make(seed=seed), found.task.spec
    prior = Prior().on_base(base, spec)
    guard = BaseGuard(spec, NoSupervisor(), prior.base_settings)
    trainer = Trainer(robot, config, prior=prior, supervisor=guard)
    alone, run_episode, records = trainer.state.controller, robot.run_episode, {}

    def both(policy: Any, goals: Any, excitation: Any = None) -> Any:
        before, carried = robot.snapshot(), robot.carried  # an episode has parts, within which a motion goes on
        records["base"] = run_episode(alone, goals, None)
        robot.restore(before)
        robot.carried = carried
        return run_episode(policy, goals, excitation)

    robot.run_episode = both
    cycles = read_cycles(options.cycles, spec) if options.cycles else ()
    while trainer.episode < options.episodes:
        began = time.monotonic()
        summary = trainer.run_episode()
        metrics = summary.metrics
        row = {
            "seed": seed,
            "episode": summary.episode,
            "error": metrics["tracking_error"],
            "base_error": tracking_metrics(spec, (records["base"],)).mean_error,
            **{name: metrics[name] for name in ("learned_authority", "base_share", "surprise", "radius", "refined")},
        }
        row["ratio"] = row["error"] / row["base_error"]
        if isinstance(spec.kinematics, SelectedOutput):
            for name, record in (("", summary.record), ("base_", records["base"])):
                row[f"{name}joint_errors"] = joint_errors(record, spec.kinematics.indices)
        if cycles and (summary.episode == 1 or summary.episode % 5 == 0 or summary.episode == options.episodes):
            row["cycles"] = cycle_errors(robot, trainer.state.controller, cycles)
            if summary.episode == 1:
                row["base_cycles"] = cycle_errors(robot, alone, cycles)
        if (doubt := getattr(robot, "doubt", None)) is not None:
            row["doubtful_share"] = float(np.mean(doubt > 1.0))
        print(f"{time.monotonic() - began:6.1f} s ", {k: _short(v) for k, v in row.items()}, flush=True)
        save(row)


def cycle_errors(robot: Any, controller: Any, cycles: Any) -> list[float]:
    """Mean absolute error of each joint over all cycles, on the truth where it is known."""
    indices = robot.task.spec.kinematics.indices
    records = robot.follow(controller, cycles)
    steps = [record.commands.shape[1] for record in records]
    return np.average([joint_errors(record, indices) for record in records], axis=0, weights=steps).tolist()


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return float(f"{value:.4g}") if isinstance(value, float) else value


def change(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, int(value) if value.isdigit() else float(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("robot")
    parser.add_argument("--base", default="pi")
    parser.add_argument("--mode", default="add")
    parser.add_argument("--episodes", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--change", type=change, nargs="*", default=[], help="settings, such as model.steps=300")
    parser.add_argument("--again", action="store_true", help="run seeds anew that the results have")
    parser.add_argument("--cycles", type=Path, help="an .npz log whose work cycles are followed now and then")
    options = parser.parse_args()
    file = RESULTS / f"on-top-of-a-base-{short_name(options.robot)}-{options.mode}.json"
    about = {"robot": options.robot, "base": Path(options.base).name, "mode": options.mode}
    about |= {"changes": dict(options.change)}
    # Rows of other rules are of another study.
    about["rules"] = dataclasses.asdict(BaseSettings(first_authority=FIRST_AUTHORITY[options.mode]))
    about = json.loads(json.dumps(about))
    rows = kept_rows(file, about, options)
    seeds = [seed for seed in options.seeds if not any(row["seed"] == seed for row in rows)]
    plain = find_robot(options.robot, approve=True)
    for seed in seeds:
        base = find_base(options.base, options.mode, plain, seed=seed)
        print(base.origin, flush=True)

        def save(row: dict[str, Any]) -> None:
            rows.append({name: _short(value) for name, value in row.items()})
            file.write_text(json.dumps({**about, "episodes": rows}, indent=1) + "\n")

        run(options, base, base.put_inside(plain), seed, save)
    summarise(rows)


def kept_rows(file: Path, about: dict[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of an earlier run of the same study: of other seeds, and of these where they are complete."""
    stored = json.loads(file.read_text()) if file.exists() else {}
    if {name: stored.get(name) for name in about} != about:
        return []
    done = collections.Counter(row["seed"] for row in stored["episodes"])
    again = {s for s in options.seeds if options.again or done[s] < options.episodes}
    return [row for row in stored["episodes"] if row["seed"] not in again]


def summarise(rows: list[dict[str, Any]]) -> None:
    """The largest and the median ratio to the base per episode."""
    for episode in sorted({row["episode"] for row in rows}):
        mine = [row for row in rows if row["episode"] == episode]
        ratios, errors = [row["ratio"] for row in mine], [row["error"] for row in mine]
        worst = max(mine, key=lambda row: row["ratio"])
        print(
            f"episode {episode:3d}: median error {np.median(errors):.4g}, ratio to the base {np.median(ratios):.2f}, "
            f"worst of {len(mine)} seeds {worst['ratio']:.2f} (seed {worst['seed']})"
        )


if __name__ == "__main__":
    main()
