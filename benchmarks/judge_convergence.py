"""The finding of `convergence` from its recorded tables, by the rule of today.

    python benchmarks/judge_convergence.py      writes finding.md and finding.json beside the tables

The run is old, and of each seed only the tracking error was kept, not the loss. So a seed's loss is its squared error,
times the factor per episode that makes the mean over seeds, on a log scale, the recorded mean loss. Exponents and
losses are then those of the recorded means; how far seeds differ is that of their squared errors, which differ as much
as the losses do (0.98 of their standard deviation).
"""

import dataclasses
import shutil
import tempfile
from pathlib import Path

import numpy as np

from firsthand_lab.experiments import Size, files, learning, throughput
from firsthand_lab.experiments.convergence import Convergence
from firsthand_lab.experiments.curves import Curves
from firsthand_lab.experiments.finding_files import write_finding
from firsthand_lab.experiments.study import Study

RESULTS = Path(__file__).parent / "results" / "experiments" / "convergence"
NOTE = (
    "Judged anew from the recorded tables, by today's rule (benchmarks/judge_convergence.py): of each seed only the "
    "tracking error was kept, so its square says how far the seeds' losses differ."
)


def seeds_of(column: str) -> np.ndarray:
    """A recorded column of all seeds, `(seeds, episodes)`."""
    table = files.read_csv(RESULTS / "seeds.csv")
    return np.stack([table[column][table["seed"] == seed] for seed in np.unique(table["seed"])])


def rebuild_losses() -> Curves:
    """The losses of the seeds."""
    mean = files.read_csv(RESULTS / "convergence.csv")
    squared = Curves(mean["episode"].astype(int), seeds_of("tracking_error") ** 2)
    return Curves(squared.episodes, squared.values * mean["controller_loss"] / squared.log_mean())


def main() -> None:
    """Rebuild what the jobs left, conclude, and keep the finding; tables and figure stay as they are."""
    before, losses = files.read_json(RESULTS / "finding.json"), rebuild_losses()
    columns = {"controller_loss": losses.values}
    columns |= {name: seeds_of(name) for name in ("tracking_error", "prediction_error")}
    size, experiment = Size("full", before["seeds"]), Convergence()
    speed, commits = before["numbers"]["episodes_per_core_second"], before["commits"]
    with tempfile.TemporaryDirectory() as folder, Study(Path(folder) / "convergence", experiment, size) as study:
        results = study.results()
        for result in results[:-1]:
            seeds = result.job.parameters["seeds"]
            rows = {"episode": np.tile(losses.episodes, len(seeds)), "seed": np.repeat(seeds, len(losses.episodes))}
            own = {name: values[seeds].ravel() for name, values in columns.items()}
            files.write_csv(result.folder / learning.CURVES, {**rows, **own})
        counts = {"seeds": [int(count) for count in speed], "episodes": list(speed.values())}
        files.write_csv(results[-1].folder / throughput.FILE, {**counts, "core_seconds": [1.0] * len(speed)})
        for i, result in enumerate(results):  # together they took what the run took
            done = {"core_seconds": 0.0 if i else before["core_seconds"], "commit": commits[i % len(commits)]}
            files.write_json(result.folder / files.DONE, done)
        finding = experiment.conclude(size, results)
        finding = dataclasses.replace(finding, text=f"{finding.text} {NOTE}")
        write_finding(study.path, experiment, size, results, finding)
        for name in ("finding.md", "finding.json"):
            shutil.copy(study.path / name, RESULTS / name)


if __name__ == "__main__":
    main()
