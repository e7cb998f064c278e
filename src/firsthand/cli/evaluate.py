"""`firsthand evaluate`."""

import json
from contextlib import closing
from dataclasses import asdict, dataclass, replace
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
    """Take the policy after the last update, which has not run on the robot yet."""
    speed: Annotated[float | None, arg(metavar="X", help_behavior_hint="")] = None
    """Speed along the references in m/s, or in the task's own unit; by default the task's (0.5 for the excavator)."""
    robot: Annotated[str | None, arg(metavar="ROBOT", help_behavior_hint="")] = None
    """Another robot with the same control specification, or the run's own at a new address."""
    cycles: Annotated[Path | None, arg(metavar="LOG", help_behavior_hint="")] = None
    """Follow the work cycles of this .npz log (its array `reference`) instead of the task's references."""
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
        from ..robots.registry import find_robot
        from ..robots.user_file import short_name
        from ..runs import packed
        from ..training.run import Run
        from ..units import unit_of
        from .results import evaluate_kept, find_oracle, oracle_failed, print_evaluation

        run = Run.open(self.run_folder)
        policy = self._policy(run)
        found = run.find_robot() if self.robot is None else run.as_driven(find_robot(self.robot, approve=True))
        check_speed(self.speed, found.task)
        if self.cycles is not None:
            from ..logs import read_cycles

            logged = read_cycles(self.cycles, found.task.spec)
            found = replace(found, task=replace(found.task, evaluation=lambda speed: logged))
        with closing(run.make_robot(found)) as robot:
            set_authority(robot, self.authority)
            oracle = find_oracle(robot, compute=self.oracle, speed=self.speed)
            own_robot = short_name(found.name) == short_name(run.config.robot) and self.cycles is None
            if own_robot and self.speed is None and self.episode is None and not self.newest:
                _, result = evaluate_kept(run, robot, oracle)
            else:
                result = evaluate(robot, run.runnable(policy), speed=self.speed)
        if self.json:
            data = {"unit": found.task.unit, **result.as_dict()}
            if oracle is not None:
                data["oracle"] = {**asdict(oracle), "failed": oracle_failed(result, oracle)}
            print(json.dumps(packed.plain_values(data, nonfinite="null"), indent=2, allow_nan=False))
        else:
            print_evaluation(found.name, unit_of(found.task.unit), result, oracle)
        return 0

    def _policy(self, run: Any) -> Any:
        if self.newest:
            return run.newest_policy()
        return run.kept_policy() if self.episode is None else run.policy(self.episode)


def check_speed(speed: float | None, task: Any) -> None:
    """Raise `UserError` for a speed far from what the task's references are made for."""
    least, most = SLOWEST * task.evaluation_speed, FASTEST * task.evaluation_speed
    if speed is not None and not least <= speed <= most:  # NaN is not inside either
        raise UserError(f"speed is {speed}, but must lie between {least:g} and {most:g} {task.unit}/s.")
