"""The job: DreamerV3 learns on a simulated robot, and is tested at marks.

A checkpoint is written every few minutes, at the end of a trajectory: sheeprl's own (networks, optimiser, replay), the
robot and the books. A job that was killed goes on from there and does the minutes since then again, with the same
outcome: random numbers depend on the seed and the step alone. sheeprl reads its checkpoint with pickle, so continue
only folders that you trust.
"""

import json
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.errors import UserError
from firsthand.runs import atomic

from ...experiments import files
from ...experiments.base import Report
from ..ledger import Ledger, peak_memory_mb
from ..setup import plant_and_task
from ..view import RobotView
from .protocol import ACT, ACTED, ENDED, NEXT, ON, RESET, SAVE, SAVED, SEEN, STEP, Ended, Link, numbers
from .settings import COMMON, SETTINGS

ENVIRONMENT = Path(__file__).resolve().parents[4] / ".venv-dreamerv3"
"""What `make peers` makes; it holds a file `.ready` when it is complete."""
SAVE_EVERY_S = 180.0


def require() -> None:
    """Raise `UserError` where the environment is missing."""
    if not (ENVIRONMENT / ".ready").exists():
        raise UserError("DreamerV3 needs its own environment: run `make peers`.")


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Learn for the given number of episodes, from the last checkpoint on."""
    require()
    if parameters["setting"] not in SETTINGS:
        raise UserError(f"setting is {parameters['setting']!r}, but must be one of {', '.join(SETTINGS)}.")
    plant, task = plant_and_task(parameters["robot"], tiny=parameters["setting"] == "tiny")
    view = RobotView(plant, task, seed=parameters["seed"])
    ledger = Ledger(folder, view.stepper, parameters["marks"], report)
    books = Books(folder / files.CHECKPOINT, view, ledger)
    books.resume()
    if view.episode == parameters["episodes"]:
        return  # killed after its last checkpoint
    with Learner(learner_request(parameters, view, books), books.folder / "dreamerv3.log") as learner:
        try:
            serve(learner, view, ledger, books, parameters)
        except Ended as error:
            raise UserError(f"DreamerV3 ended early: {error}; {learner.last_words()}.") from error


def learner_request(parameters: dict[str, Any], view: RobotView, books: "Books") -> dict[str, Any]:
    """The learner's inputs at its start."""
    task = view.task
    steps = parameters["episodes"] * task.trajectories * task.steps
    # sheeprl keeps an entry per observation, and a trajectory has one more of these than steps.
    entries = parameters["episodes"] * task.trajectories * (task.steps + 1) + 1
    overrides = [
        *COMMON,
        *SETTINGS[parameters["setting"]].overrides,
        f"algo.total_steps={steps}",
        f"buffer.size={entries}",
        f"checkpoint.every={task.steps}",
        f"seed={parameters['seed']}",
    ]
    return {
        "overrides": overrides,
        "resume_from": str(books.learner) if books.learner else None,
        "scratch": str((books.folder / "scratch").resolve()),
        "observation": view.observation_size,
        "action": view.action_size,
        "seed": parameters["seed"],
        "step": view.steps,
    }


@dataclass
class Books:
    """What a run has to remember besides the ledger, and its checkpoints."""

    folder: Path
    view: RobotView
    ledger: Ledger
    learner: Path | None = None
    """sheeprl's checkpoint to go on from."""
    computing_s: float = 0.0
    """Processor time of acting and learning in the episode so far."""
    parameters: int = 0
    """Trainable ones."""
    memory_mb: float = 0.0
    """The most that this process and the learner's have had."""
    robot: dict[str, np.ndarray] = field(default_factory=dict)
    """The robot at the end of the last trajectory."""
    saved_at: float = field(default_factory=time.monotonic)
    """When the last checkpoint was written."""

    def resume(self) -> None:
        """Read the last checkpoint, if there is one."""
        latest = self.folder / "latest.json"
        if not latest.exists():
            return
        place = self.folder / files.read_json(latest)["folder"]
        robot, info = files.read_arrays(place / "robot.safetensors")
        self.view.restore(robot)
        self.ledger.curves, self.ledger.tests = info["curves"], info["tests"]
        self.computing_s, self.parameters, self.memory_mb = (
            info[name] for name in ("computing_s", "parameters", "memory_mb")
        )
        self.learner = (place / "checkpoint" / info["learner"]).resolve()

    def save(self, link: Link) -> None:
        """Write a checkpoint; the one before is removed when this one is complete."""
        place = self.folder / f"{self.view.steps:08d}"
        link.send(SAVE, str(place.resolve()))
        written = link.receive(SAVED)[1].decode()
        info = {
            "curves": self.ledger.curves,
            "tests": self.ledger.tests,
            "computing_s": self.computing_s,
            "parameters": self.parameters,
            "memory_mb": self.memory_mb,
            "learner": Path(written).name,
        }
        for path in (place, *place.rglob("*")):
            atomic.sync(path)
        files.write_arrays(place / "robot.safetensors", self.robot, info)
        files.write_json(self.folder / "latest.json", {"folder": place.name})
        for other in self.folder.glob("[0-9]" * 8):
            if other != place:
                shutil.rmtree(other, ignore_errors=True)
        self.saved_at = time.monotonic()


def serve(learner: "Learner", view: RobotView, ledger: Ledger, books: Books, parameters: dict[str, Any]) -> None:
    """Be the robot until the episodes are over."""
    link = learner.link
    link.receive(RESET)  # until here the learner was starting
    link.send(SEEN, view.begin())
    began, before = time.monotonic(), view.steps
    while True:
        kind, content = link.receive(RESET, STEP, ENDED)
        if kind == RESET:
            # After the last trajectory sheeprl asks for another one, of which it makes no step.
            link.send(SEEN, view.begin())
        elif kind == STEP:
            seen, reward = view.step(numbers(content, view.action_size)[0])
            if view.over:
                books.robot = view.snapshot()
            link.send(NEXT, np.concatenate([[reward, float(view.over)], seen]))
            ledger.show(view, f"{(view.steps - before) / (time.monotonic() - began):.1f} steps/s")
        else:
            books.memory_mb = max(books.memory_mb, peak_memory_mb() + peak_memory_mb(learner.pid))
            end_of_trajectory(link, view, ledger, books, json.loads(content))
            setting = SETTINGS[parameters["setting"]].says
            ledger.describe(parameters=books.parameters, setting=setting, memory_mb=books.memory_mb)
            if view.episode == parameters["episodes"]:
                return
            link.send(ON)


def end_of_trajectory(link: Link, view: RobotView, ledger: Ledger, books: Books, facts: dict[str, Any]) -> None:
    """Write down a whole episode, test at a mark, and save from time to time."""
    books.parameters = facts["parameters"]
    books.computing_s += facts["computing_s"]
    if view.episode > len(ledger.curves):
        ledger.episode(view.episode, view.errors[-1], books.computing_s, facts["updates"])
        books.computing_s = 0.0

        def act(seen: np.ndarray, first: np.ndarray) -> np.ndarray:
            link.send(ACT, np.concatenate([np.asarray(first, np.float32)[:, None], seen], axis=1))
            return numbers(link.receive(ACTED)[1], view.action_size)

        ledger.test(view.episode, act)
    if time.monotonic() - books.saved_at > SAVE_EVERY_S:
        books.save(link)


class Learner:
    """The learner's process: started on entry, gone on exit."""

    def __init__(self, request: dict[str, Any], log: Path) -> None:
        self._request, self._log = request, log

    def __enter__(self) -> "Learner":
        atomic.make_folder(self._log.parent)
        command = [
            str(ENVIRONMENT / "bin" / "python"),
            str(Path(__file__).parent / "learner.py"),
            json.dumps(self._request),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self.link = Link(self._process.stdout, self._process.stdin)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def last_words(self) -> str:
        """The last line that it printed, and where the rest is."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"its last line in {self._log} is: {lines[-1] if lines else '(none)'}"
