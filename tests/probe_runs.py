"""Tiny runs that tests of training share: with the same settings, what is compiled for one serves the others."""

from pathlib import Path

from firsthand.cli.results import evaluate_kept
from firsthand.robots.description import ROBOT_DESCRIPTION
from firsthand.robots.registry import find_robot
from firsthand.runs import RunFolder
from firsthand.training import FolderRecorder, Trainer, TrainingConfig, preset
from firsthand.training.run import Run

SMALL = {"model.steps": 50, "model.hidden": (16,)}
FAST = preset("fast").with_changes(
    {
        "policy_step.steps": 3,
        "imagination.trajectories": 4,
        "refinement.steps": 2,
        "refinement.batch": 2,
        **SMALL,
    }
)
EPISODES = 9
"""The same for all, so that the buffers have the same size; most tests stop earlier."""


def finished_run(folder: Path, file: str, source: str) -> Path:
    """A trained and evaluated run of a robot in a file of the user's, which is gone since."""
    path = folder / file
    path.write_text(source)
    found = find_robot(f"{path}:task", approve=True)
    config = TrainingConfig.of(found.name, "paper", episodes=2, changes={"model.steps": 5})
    robot = found.make()
    stored = {**config.as_dict(), ROBOT_DESCRIPTION: robot.description().as_dict()}
    with RunFolder.create(folder / "run", stored, provenance={}) as run:
        Trainer(robot, config, FolderRecorder(run)).train()
    evaluate_kept(Run.open(folder / "run"), robot, None)
    path.unlink()
    return folder / "run"
