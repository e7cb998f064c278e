"""DreamerV3 of the package sheeprl on the same robot, in a process and an environment of its own.

The robot is simulated here, by `RobotView`; the learner is `learner.py` under `.venv-dreamerv3`, and they talk as
`protocol.py` says. `settings.py` has the settings. `run` is the job.
"""

from .job import require, run

__all__ = ["require", "run"]
