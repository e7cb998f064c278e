"""A finished or running run, read back: its configuration, robot and policies."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..agent import LearnerState
from ..cache import cache_folder
from ..errors import UserError
from ..evaluation.oracle import OracleResult, cached_oracle
from ..logs import spec_difference
from ..models import Policy
from ..robots import AbstractRobot, EpisodeRecord
from ..robots.registry import make_robot, make_task
from ..runs import RunFolder
from ..runs.pytrees import from_arrays
from ..tasks import Task
from .config import TrainingConfig
from .display import say
from .loop import policy_from_arrays


@dataclass(frozen=True)
class RestoredRun:
    """What a run folder tells."""

    folder: RunFolder
    """The folder, opened for reading."""
    config: TrainingConfig
    """How the run was made."""
    task: Task
    """The robot's task."""

    @staticmethod
    def open(path: str | Path) -> "RestoredRun":
        """Open a run; it must have been made with the same control specification as this version's."""
        folder = RunFolder.open(Path(path))
        config = TrainingConfig.from_dict(folder.config, f"{folder.path / 'config.json'}")
        for note in config.robot_notes():
            say(note)
        task = config.make_task()
        if config.as_dict()["control_spec"] != folder.config.get("control_spec"):
            if config.robot_file is not None:
                raise UserError(
                    f"{path} was made with another control specification than {config.robot} has now; put the file "
                    "back as it was."
                )
            raise UserError(
                f"{path} was made with another control specification of {config.robot!r} than this version of "
                "firsthand has; evaluate it with the version named in its config.json."
            )
        return RestoredRun(folder, config, task)

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per episode."""
        return self.folder.read_metrics()

    def episodes(self) -> list[int]:
        """Which episodes are stored, counted from 1."""
        return self.folder.episodes()

    def record(self, episode: int) -> EpisodeRecord:
        """What the robot did in an episode."""
        return EpisodeRecord.from_arrays(self._episode(episode))

    def policy(self, episode: int | None = None) -> Policy:
        """The policy that ran an episode, or, without one, the kept one: the best that the robot has proven."""
        if episode is not None:
            return policy_from_arrays(self.task.spec, self._episode(episode))
        best = self.folder.load_best()
        if best is None and not self.episodes():
            raise UserError(f"{self.folder.path} has no finished episode yet.")
        if best is None:
            raise UserError(
                f"no episode of {self.folder.path} has proven a policy yet; give --episode, or evaluate --newest."
            )
        return policy_from_arrays(self.task.spec, best[0])

    def kept_episode(self) -> int | None:
        """The episode that the kept policy ran; None while there is none."""
        best = self.folder.load_best()
        return None if best is None else int(best[1]["episode"])

    def newest_policy(self) -> Policy:
        """The result of the last update, which has not run on the robot yet."""
        if not self.folder.checkpoints():
            raise UserError(f"{self.folder.path} has no finished episode yet.")
        checkpoint = self.folder.load_checkpoint()
        for note in checkpoint.notes:
            say(note)
        template = LearnerState.random(self.task.spec, self.config.settings, seed=self.config.seed)
        learner = {name: array for name, array in checkpoint.arrays.items() if name.startswith("learner.")}
        return from_arrays({"learner": template}, learner, may_lack="refinement")["learner"].policy

    def robot(self) -> AbstractRobot:
        """The robot of the run; a simulated one stands at home, a machine uses the range that the run has earned."""
        robot = make_robot(self.config.robot, self.task, payload_kg=self.config.payload_kg, seed=self.config.seed)
        if robot.has_authority:
            robot.authority = self.earned(robot.authority)
        return robot

    def earned(self, least: float) -> float:
        """Share of the command range that the last episode used; `least` on another machine, and where none is told."""
        rows = self.metrics()
        machine = rows[-1].get("machine", self.folder.config.get("robot")) if rows else None
        return float(rows[-1].get("authority", least)) if machine == self.config.robot else least

    def on(self, robot: str) -> "RestoredRun":
        """The same run as if its robot were another one, which must have the same control specification."""
        task = make_task(robot)
        if difference := spec_difference(self.task.spec, task.spec):
            raise UserError(f"the policy of {self.folder.path} cannot run on {robot}: {difference}.")
        return dataclasses.replace(self, config=dataclasses.replace(self.config, robot=robot), task=task)

    def oracle(self) -> OracleResult | None:
        """What the oracle reached on this robot and task, if it has one and it has been computed before."""
        plant = self.robot().plant
        if plant is None:
            return None
        return cached_oracle(plant, self.task, cache_folder() / "oracles")

    def _episode(self, episode: int) -> dict[str, Any]:
        known = self.episodes()
        if episode not in known:
            held = f"{known[0]} to {known[-1]}" if known else "none yet"
            raise UserError(f"episode is {episode}, but {self.folder.path} holds episodes {held}.")
        return self.folder.load_episode(episode)[0]
