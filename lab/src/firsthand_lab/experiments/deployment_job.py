"""The job of `deployment`: starts the machine and the onboard program, and trains across the link."""

import contextlib
import json
import math
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.errors import UserError
from firsthand.models import Policy
from firsthand.robots import EpisodeRecord
from firsthand.robots.description import ROBOT_DESCRIPTION, RobotDescription
from firsthand.robots.remote import RemoteRobot, disconnect
from firsthand.runs import RunFolder, provenance
from firsthand.training import FolderRecorder, Trainer, TrainingConfig
from firsthand.training.guard import Guard
from firsthand.training.judgement import GuardSettings
from firsthand.training.parts import Callback, EpisodeSummary
from firsthand_onboard.child_process import module_command

from . import files
from .base import Report
from .deployment_machine import oil_after
from .learning import known_or_nan, write_rows
from .theory.setup import settings_of, task_of

MACHINE = "firsthand_lab.experiments.deployment_machine:WorkingExcavator"
KEPT = ("episode", "robot_time_s", "tracking_error", "controller_loss", "model_loss", "prediction_error", "authority")
"""Of the run's metrics."""


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Train across the link, from the last finished episode on. Leaves episodes.csv and records/.

    A machine cannot be rewound: after an interruption it stands at home, with oil as warm as it was.
    """
    task = task_of(parameters)
    config = TrainingConfig(
        robot="excavator-pressure",
        preset=parameters["preset"],
        settings=settings_of(parameters),
        episodes=parameters["episodes"],
        seed=parameters["seed"],
    )
    with _run_folder(folder / files.CHECKPOINT / "run", config, task) as kept:
        done = max(kept.checkpoints(), default=0)
        with machine(parameters, done * task.episode_s, folder) as address:
            robot = TimedRobot(address, task, run=f"deployment-{parameters['seed']}", say=print)
            watch, guard = Watch(parameters, folder, robot, report), Guard(task, GuardSettings())
            trainer = Trainer(
                robot, config, FolderRecorder(kept), supervisor=guard, callbacks=(watch,), keep_going=True
            )
            if done:
                trainer.resume()
                watch.resume(kept)
            trainer.train()
            disconnect(address)
    write_rows(folder / "episodes.csv", watch.rows)


def _run_folder(path: Path, config: TrainingConfig, task: Any) -> RunFolder:
    if (path / "config.json").exists():
        return RunFolder.open(path, writer=True)
    described = {**config.as_dict(), ROBOT_DESCRIPTION: RobotDescription.of(task, kind="machine").as_dict()}
    return RunFolder.create(path, described, provenance=provenance.collect())


class TimedRobot(RemoteRobot):
    """Remembers how long it was moving."""

    moving_s = 0.0

    def run_episode(self, policy: Policy, goals: np.ndarray, excitation: np.ndarray | None = None) -> EpisodeRecord:
        """The same, with a watch."""
        began = time.monotonic()
        record = super().run_episode(policy, goals, excitation)
        self.moving_s = time.monotonic() - began
        return record


class Watch(Callback):
    """Times the episodes, keeps the marked ones, and reports."""

    def __init__(self, parameters: dict[str, Any], folder: Path, robot: TimedRobot, report: Report) -> None:
        self.parameters, self.folder, self.robot, self.report = parameters, folder, robot, report
        self.rows: list[dict[str, Any]] = []
        self._began = time.monotonic()
        self._table = folder / files.CHECKPOINT / "rows.json"

    def resume(self, run: RunFolder) -> None:
        """What earlier sessions noted, for the episodes that the run has.

        An episode counts before it is noted. What a kill in between has lost is rebuilt from the run, except for the
        times that only the watch knew: between episodes there was at least the update.
        """
        noted = files.read_json(self._table) if self._table.exists() else []
        known = {row["episode"]: row for row in noted}
        self.rows = []
        for metrics in run.read_metrics():
            episode = metrics["episode"]
            record = EpisodeRecord.from_arrays(run.load_episode(episode)[0])
            if not self._path(episode).exists():
                self._keep(episode, record)
            lost = self._row(metrics, record, between_s=metrics["update_time_s"], moving_s=math.nan)
            self.rows.append(known.get(episode, lost))

    def after_episode(self, summary: EpisodeSummary) -> None:
        """From the end of the last episode to the end of this one: what was not motion was between episodes."""
        metrics, now, moving_s = summary.metrics, time.monotonic(), self.robot.moving_s
        between_s = now - self._began - moving_s
        self.rows.append(self._row(metrics, summary.record, between_s=between_s, moving_s=moving_s))
        self._began = now
        self._keep(summary.episode, summary.record)
        files.write_json(self._table, self.rows)
        self.report(summary.episode, f"error {100 * metrics['tracking_error']:.1f} cm")

    def notify(self, text: str) -> None:
        """The guard's decision, for the job's log."""
        print(text)

    def _row(self, metrics: Mapping[str, Any], record: EpisodeRecord, **times: float) -> dict[str, Any]:
        return {
            **{name: known_or_nan(metrics[name]) for name in KEPT},
            "update_time_s": metrics["update_time_s"],
            **times,
            "free_share": float(np.mean(record.free)),
            "oil_c": oil_after(metrics["robot_time_s"], self.parameters["machine"]["warming_rate"]),
        }

    def _path(self, episode: int) -> Path:
        return self.folder / "records" / f"{episode:06d}.safetensors"

    def _keep(self, episode: int, record: EpisodeRecord) -> None:
        if episode in self.parameters["marks"]:
            files.write_arrays(self._path(episode), record.arrays())


@contextlib.contextmanager
def machine(parameters: dict[str, Any], elapsed_s: float, folder: Path) -> Iterator[str]:
    """The machine and the onboard program, each in a process of its own; yields the address to train at."""
    options = {**parameters["machine"], "elapsed_s": elapsed_s, "seed": parameters["seed"]}
    options["task"] = json.dumps(parameters["task"])
    given = [word for name, value in options.items() for word in ("--plant-option", f"{name}={value}")]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "machine.txt").open("ab"))
        simulate = ("simulate", "--listen", "127.0.0.1:0", "--lock-step", "--timeout", "60", "--plant", MACHINE, *given)
        ready = stack.enter_context(_process(simulate, log))
        found = re.search(r"at ([\d.]+:\d+)", ready)
        if not found:
            raise UserError(f"the simulated machine did not start; see {folder / 'machine.txt'}.")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"tcp/127.0.0.1:{probe.getsockname()[1]}"
        serve = ("serve", "--listen", address, "--lease", "60", "--priority", "0", "--watchdog", "10")
        udp = ("--machine", "firsthand_onboard.simulation:UdpMachine", "--machine-option", f"address={found[1]}")
        stack.enter_context(_process((*serve, *udp, "--machine-option", "patience_s=60"), log))
        yield address


_END_WITH_PARENT = (
    "import sys\n"
    "sys.path[:] = filter(None, sys.path)\n"  # not the working folder
    "import ctypes, os, signal\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""A job may be killed at any instant; its machine must not live on."""


@contextlib.contextmanager
def _process(words: tuple[str, ...], log: Any) -> Iterator[str]:
    """A program of firsthand-onboard; yields the line that says that it is ready."""
    command = [sys.executable, "-c", _END_WITH_PARENT, *module_command("firsthand_onboard"), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        if not ready:
            raise UserError(f"firsthand-onboard {words[0]} ended with code {process.wait()}; see {log.name}.")
        yield ready
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
