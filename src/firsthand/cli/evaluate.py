"""`firsthand evaluate`."""

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from ..errors import UserError

SLOWEST, FASTEST = 0.01, 20.0
"""Speeds that can be asked for, over the task's own. Slower than this a reference has more steps than memory."""


@dataclass(frozen=True)
class Evaluate:
    """Follow the fixed references with a run's policy, and print the metrics of the paper's table 1."""

    run_folder: Annotated[Positional[Path], arg(metavar="RUN", help_behavior_hint="")]
    """Folder of the run."""
    episode: Annotated[int | None, arg(metavar="K", help_behavior_hint="")] = None
    """Take the policy that ran this episode (from 1); by default the best that the robot has proven."""
    newest: Annotated[bool, arg(help_behavior_hint="")] = False
    """Take the result of the last update, which has not run on the robot yet."""
    speed: Annotated[float | None, arg(metavar="X", help_behavior_hint="")] = None
    """Speed along the references in m/s, or in the task's own unit; by default the task's (0.5 for the excavator)."""
    on: Annotated[str | None, arg(metavar="ROBOT", help_behavior_hint="")] = None
    """Follow them with another robot of the same control specification: the one a simulator imitates, for example."""
    authority: Annotated[float | None, arg(metavar="X", help_behavior_hint="")] = None
    """For a robot across the network: share of the command range; by default what the run's last episode used."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print one JSON object instead of a table."""
    oracle: Annotated[bool, arg(help_behavior_hint="")] = False
    """Compare with the oracle: the same policy class trained with the plant's true gradients (minutes, then cached)."""

    def run(self) -> int:
        """Evaluate and print."""
        if self.newest and self.episode is not None:
            raise UserError(f"--newest and --episode {self.episode} name two policies; give one of them.")
        from ..evaluation import evaluate
        from ..robots.onboard import set_authority
        from ..runs import plain
        from ..training.restore import RestoredRun
        from .results import oracle_beside, oracle_of, print_evaluation

        restored = RestoredRun.open(self.run_folder)
        policy = restored.newest_policy() if self.newest else restored.policy(self.episode)
        if self.on is not None:
            restored = restored.on(self.on)
        check_speed(self.speed, restored.task)
        with closing(restored.robot()) as robot:
            set_authority(robot, self.authority)
            result = evaluate(robot, policy, speed=self.speed)
        oracle = oracle_beside(result, oracle_of(restored, compute=self.oracle, speed=self.speed))
        if self.json:
            data = result.as_dict()
            if oracle is not None:
                data["oracle"] = oracle
            print(json.dumps(plain.values(data, nonfinite="null"), indent=2, allow_nan=False))
        else:
            print_evaluation(restored, result, oracle)
        return 0


def check_speed(speed: float | None, task: Any) -> None:
    """Raise `UserError` for a speed far from what the task's references are made for."""
    least, most = SLOWEST * task.evaluation_speed, FASTEST * task.evaluation_speed
    if speed is not None and not least <= speed <= most:  # NaN is not inside either
        raise UserError(f"speed is {speed}, but must lie between {least:g} and {most:g} {task.unit}/s.")
