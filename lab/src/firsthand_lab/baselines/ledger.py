"""What every peer leaves behind, in the same form, so that they can be put side by side.

Books are written as they come, so that a run that is not finished can be looked at.

curves.csv          a row per episode of robot time: mean error while learning, computing time, gradient updates so far
marks.csv           a row per test on held-out references
paths.safetensors   reference and path of each evaluation shape at the last test
facts.json          parameters, memory, and what was changed from the published settings
"""

import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.tasks import Task
from firsthand_onboard.kinematics import tracked_output

from ..experiments import files
from ..experiments.base import Report
from ..experiments.learning import write_rows
from .view import Controller, RobotView, Stepper, Tested, test

SHOW_EVERY_S = 10.0
CURVES, MARKS, PATHS, FACTS = "curves.csv", "marks.csv", "paths.safetensors", "facts.json"


class Ledger:
    """Keeps the books of one run."""

    def __init__(self, folder: Path, stepper: Stepper, marks: Sequence[int], report: Report) -> None:
        self.folder, self.stepper, self.marks, self.report = folder, stepper, tuple(marks), report
        self.curves: list[dict[str, Any]] = []
        self.tests: list[dict[str, Any]] = []
        self._shown = time.monotonic()

    def show(self, view: RobotView, note: str) -> None:
        """Within an episode: tell how far it is, every few seconds."""
        if time.monotonic() - self._shown < SHOW_EVERY_S:
            return
        self._shown = time.monotonic()
        error = f", error {100 * view.errors[-1]:.1f} cm" if view.errors else ""
        self.report(view.progress, f"step {view.steps}, {note}{error}")

    def episode(self, episode: int, error_m: float, computing_s: float, updates: int) -> None:
        """An episode of robot time is over."""
        self.curves.append(
            {"episode": episode, "tracking_error": error_m, "computing_s": computing_s, "updates": updates}
        )
        write_rows(self.folder / CURVES, self.curves)
        self.report(episode, f"error {100 * error_m:.1f} cm")

    def test(self, episode: int, controller: Controller) -> None:
        """If this episode is a mark, test the controller."""
        if episode not in self.marks:
            return
        tested = test(self.stepper, controller)
        files.write_arrays(self.folder / PATHS, shape_paths(self.stepper.task, tested))
        self.tests.append(
            {
                "episode": episode,
                "random_m": tested.random.mean_error,
                "shapes_m": tested.shapes.mean_error,
                "random_max_m": tested.random.max_error,
                "shapes_max_m": tested.shapes.max_error,
                "act_ms": tested.act_ms,
                "at_limit": tested.at_limit,
            }
        )
        write_rows(self.folder / MARKS, self.tests)

    def describe(self, *, parameters: int, setting: str, memory_mb: float | None = None) -> None:
        """The learner, and its memory use so far."""
        facts = {
            "parameters": parameters,
            "memory_mb": round(memory_mb if memory_mb is not None else peak_memory_mb()),
            "setting": setting,
        }
        files.write_json(self.folder / FACTS, facts)


def shape_paths(task: Task, tested: Tested) -> dict[str, np.ndarray]:
    """Reference and path of each shape, by name."""
    arrays = {}
    for reference, record in zip(task.evaluation(task.evaluation_speed), tested.records, strict=True):
        steps = record.commands.shape[1]
        path = np.asarray(tracked_output(task.spec, record.best_known[0, :steps].astype(np.float64)))
        arrays[f"{reference.name}.path"] = path.astype(np.float32)
        arrays[f"{reference.name}.reference"] = record.references[0, :steps]
    return arrays


def peak_memory_mb(pid: int | None = None) -> float:
    """The most memory that this process, or another one, has had, in MB.

    Where there is no /proc it is 0 for another one.
    """
    status = Path(f"/proc/{pid or 'self'}/status")
    if status.exists():  # getrusage would count what a process had before it became another program
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) / 2**10
    return 0.0 if pid else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class Stopwatch:
    """Computing between episodes of a view: processor time without the simulated robot's and without tests."""

    def __init__(self, view: RobotView) -> None:
        self.view = view
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self._began, self._simulated = time.process_time(), self.view.simulation_s

    def take(self) -> float:
        """Seconds since the last time."""
        taken = time.process_time() - self._began - (self.view.simulation_s - self._simulated)
        self.restart()
        return taken
