"""The job that most experiments consist of: several seeds learn side by side, and what they did is kept.

It leaves:

    curves.csv              a row per episode and seed
    shapes.csv              the metrics of table 1 on each evaluation reference, per mark and seed
    speeds.csv              the same over all references together at several speeds, for the last policies, and, with
                            an empty speed, for the random references of the last episode
    paths/EPISODE.safetensors      references and true paths of the shapes at a mark
    records/EPISODE.safetensors    what the robots did in an episode that was asked for
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from firsthand.errors import UserError

from . import files
from .base import Job, Report

RUNNER = f"{__name__}:run"
CURVES, SHAPES, SPEEDS = "curves.csv", "shapes.csv", "speeds.csv"
CURVE_COLUMNS = ("tracking_error", "controller_loss", "cost", "model_loss", "prediction_error", "gradient_norm")
CHECKPOINT_EVERY = 10
"""Episodes between checkpoints."""


@dataclass(frozen=True)
class Setup:
    """What is learned, how, and what is kept of it."""

    robot: str = "excavator"
    """A simulated robot by name, or the folder of a fitted one …"""
    sensors: str | None = None
    """… and what it is seen through; by default its own sensors."""
    preset: str = "paper-exact"
    """Settings of the agent, by default the paper's algorithm as it stands, without judged steps …"""
    settings: dict[str, Any] = field(default_factory=dict)
    """… and what is changed in them."""
    task: dict[str, Any] = field(default_factory=dict)
    """Changes to the arguments of the robot's task."""
    episodes: int = 400
    """Episodes."""
    seeds: tuple[int, ...] = (0,)
    """Which seeds."""
    payloads: tuple[tuple[int, float], ...] = ()
    """(episode, kg): from this episode on the robot carries this."""
    model_until: int | None = None
    """The model no longer learns after this episode."""
    model_every: int = 1
    """The model learns once in this number of episodes."""
    marks: tuple[int, ...] = ()
    """Before these episodes the evaluation shapes are run: the policy that ran episode 1 is the random one. One more
    than the last episode is the policy at the end."""
    speeds: tuple[float, ...] = ()
    """The last policies run the shapes at these speeds, too (m/s)."""
    records: tuple[int, ...] = ()
    """Of these episodes everything is kept that the robots did."""

    def job(self, name: str, weight: float = 0.5) -> Job:
        """The job of this set-up; `weight` is what an episode of one seed takes, in core-seconds."""
        parameters = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}
        parameters["payloads"] = [list(change) for change in self.payloads]
        return Job(name, RUNNER, parameters, steps=self.episodes, weight=weight * len(self.seeds))

    @staticmethod
    def of(parameters: dict[str, Any]) -> "Setup":
        """The set-up that `job` wrote down."""
        values: dict[str, Any] = tuples(parameters)
        values["payloads"] = tuple((int(episode), float(kg)) for episode, kg in parameters["payloads"])
        return Setup(**values)

    def payload_at(self, episode: int) -> float:
        """The robot's payload in an episode."""
        held = [change for change in self.payloads if change[0] <= episode]
        return max(held)[1] if held else 0.0

    def learns_model(self, episode: int) -> bool:
        """Whether the model learns after an episode."""
        return (self.model_until is None or episode <= self.model_until) and (episode - 1) % self.model_every == 0


def run(parameters: dict[str, Any], folder: Path, report: Report) -> None:
    """Learn, from the last checkpoint on; the same seeds give the same data on one core."""
    from firsthand.robots.registry import find_robot
    from firsthand.tasks import excavator_task, soft_arm_task
    from firsthand.training.presets import preset

    from .together import Together

    setup = Setup.of(parameters)
    settings = preset(setup.preset).with_changes(setup.settings)
    source = find_robot(setup.robot, sensors=setup.sensors).source
    if Path(setup.robot).is_dir():  # a fitted network has the task of the robot that was logged
        task = dataclasses.replace(source.make_task(), **tuples(setup.task))
    else:
        task = {"soft-arm": soft_arm_task}.get(setup.robot, excavator_task)(**tuples(setup.task))
    # Goals are those that the heaviest load allows, in every episode: errors with and without it are compared.
    heaviest = max((kg for _, kg in setup.payloads), default=0.0)
    task = source.make_robot(task, payload_kg=heaviest, seed=0).task

    def plant(kg: float) -> Any:
        robot = source.make_robot(task, payload_kg=kg, seed=0)
        if robot.plant is None:
            raise UserError(f"the robot {setup.robot!r} is not simulated here, and cannot be learned on by many seeds.")
        return robot.plant

    plants = {kg: plant(kg) for kg in {0.0, *(kg for _, kg in setup.payloads)}}
    together = Together(plants[0.0], task, settings, setup.seeds, episodes=setup.episodes)
    log = Log(folder, setup)
    log.resume(together)
    note = ""
    while together.episode < setup.episodes:
        episode = together.episode + 1
        together.plant = plants[setup.payload_at(episode)]
        if episode in setup.marks:
            log.keep_shapes(episode, together)
        metrics = together.run_episode(learn_model=setup.learns_model(episode))
        log.add(episode, metrics, together)
        note = f"error {100 * np.median(metrics['tracking_error']):.1f} cm"
        if episode % CHECKPOINT_EVERY == 0 and episode < setup.episodes:
            log.checkpoint(together)
        report(log.safe, note)
    if setup.episodes + 1 in setup.marks:
        log.keep_shapes(setup.episodes + 1, together)
    if setup.speeds:
        log.keep_speeds(together)
    log.finish()
    report(setup.episodes, note)


def tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Lists, which is what JSON has, as the tuples that settings are made of."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


class Log:
    """What a learning job keeps, in memory and in files."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder, self.setup = folder, setup
        self.rows: list[dict[str, Any]] = []
        self.shapes: list[dict[str, Any]] = []
        self.safe = 0
        """Episodes that need not be done again."""
        self._records: list[dict[str, np.ndarray]] = []

    @property
    def _state(self) -> Path:
        return self.folder / files.CHECKPOINT / "state.safetensors"

    def add(self, episode: int, metrics: dict[str, np.ndarray], together: Any) -> None:
        """One episode of every seed."""
        for i, seed in enumerate(self.setup.seeds):
            values = {name: float(metrics[name][i]) for name in CURVE_COLUMNS}
            self.rows.append({"episode": episode, "seed": seed, "payload_kg": self.setup.payload_at(episode), **values})
        arrays = records_as_arrays(together.records)
        self._records.append(arrays)
        if episode in self.setup.records:
            files.write_arrays(self.folder / "records" / f"{episode:06d}.safetensors", arrays)

    def keep_shapes(self, episode: int, together: Any) -> None:
        """The newest policies on the evaluation references."""
        from firsthand.evaluation import tracking_metrics
        from firsthand_onboard.kinematics import tracked_output

        spec, arrays = together.task.spec, {}
        references = together.task.evaluation(together.task.evaluation_speed)
        followed = together.follow()
        self.shapes = [row for row in self.shapes if row["episode"] != episode]
        for seed, records in zip(self.setup.seeds, followed, strict=True):
            for reference, record in zip(references, records, strict=True):
                steps = record.commands.shape[1]
                path = np.asarray(tracked_output(spec, record.best_known[0, :steps].astype(np.float64)))
                arrays[f"{seed}.{reference.name}.path"] = path.astype(np.float32)
                arrays[f"{seed}.{reference.name}.reference"] = record.references[0, :steps]
                self.shapes.append(_metrics_row(episode, seed, reference.name, tracking_metrics(spec, (record,))))
            self.shapes.append(_metrics_row(episode, seed, "together", tracking_metrics(spec, records)))
        files.write_arrays(self.folder / "paths" / f"{episode:06d}.safetensors", arrays, {"period_s": spec.period_s})

    def keep_speeds(self, together: Any) -> None:
        """Table 1 at several speeds, and on the random references of the last episode."""
        from firsthand.evaluation import tracking_metrics

        rows = []
        for seed, record in zip(self.setup.seeds, together.records, strict=True):
            metrics = tracking_metrics(together.task.spec, (record,))
            rows.append({"speed": np.nan, **_metrics_row(together.episode, seed, "random", metrics)})
        for speed in self.setup.speeds:
            for seed, metrics in zip(self.setup.seeds, together.evaluate(speed), strict=True):
                rows.append({"speed": speed, **_metrics_row(together.episode, seed, "together", metrics)})
        write_rows(self.folder / SPEEDS, rows)

    def checkpoint(self, together: Any) -> None:
        """Everything so far; the data since the last time is added in a file of its own."""
        from firsthand.runs.pytrees import to_arrays

        for number, arrays in enumerate(self._records, start=self.safe + 1):
            files.write_arrays(self._episode(number), arrays)
        snapshot = together.snapshot()
        del snapshot["buffer"]  # it is rebuilt from the episodes
        info = {"rows": self.rows, "shapes": self.shapes}
        files.write_arrays(self._state, to_arrays(snapshot), info)
        self.safe, self._records = together.episode, []

    def _episode(self, number: int) -> Path:
        return self.folder / files.CHECKPOINT / f"{number:06d}.safetensors"

    def resume(self, together: Any) -> None:
        """Go back to the checkpoint, if there is one."""
        from firsthand.runs.pytrees import from_arrays

        if not self._state.exists():
            return
        snapshot = together.snapshot()
        buffer = snapshot.pop("buffer")
        arrays, info = files.read_arrays(self._state)
        restored = from_arrays(snapshot, arrays)
        together.restore({**restored, "buffer": buffer})
        for number in range(1, together.episode + 1):
            together.remember(records_from_arrays(files.read_arrays(self._episode(number))[0], len(self.setup.seeds)))
        self.rows, self.shapes, self.safe = info["rows"], info["shapes"], together.episode

    def finish(self) -> None:
        """The tables."""
        write_rows(self.folder / CURVES, self.rows)
        if self.shapes:
            write_rows(self.folder / SHAPES, self.shapes)


def _metrics_row(episode: int, seed: int, name: str, metrics: Any) -> dict[str, Any]:
    return {"episode": episode, "seed": seed, "reference": name, **metrics.as_dict()}


def run_in_order(
    table: Path, column: str, parts: Mapping[str, Callable[[Report], list[dict[str, Any]]]], steps: int, report: Report
) -> None:
    """Write the rows of all parts, one after the other; `column` names a row's part, and each has `steps` steps.

    A finished part is not repeated.
    """
    kept = table.parent / files.CHECKPOINT / "rows.json"
    rows: list[dict[str, Any]] = files.read_json(kept) if kept.exists() else []
    finished = {row[column] for row in rows}
    for number, (name, learn) in enumerate(parts.items()):
        if name not in finished:
            rows += learn(lambda done, note="", before=number * steps: report(before + done, note))
            files.write_json(kept, rows)
    write_rows(table, rows)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows with the same fields as a CSV file."""
    files.write_csv(path, {name: [row[name] for row in rows] for name in rows[0]})


def known_or_nan(value: float | None) -> float:
    """A number of metrics.jsonl, where what is not finite is stored as null."""
    return np.nan if value is None else value


def records_as_arrays(records: Iterable[Any]) -> dict[str, np.ndarray]:
    """Records of several robots in one set of named arrays."""
    return {f"{i}.{name}": array for i, record in enumerate(records) for name, array in record.arrays().items()}


def records_from_arrays(arrays: dict[str, np.ndarray], count: int) -> list[Any]:
    """The records back."""
    from firsthand.robots import EpisodeRecord

    parts = [{k.partition(".")[2]: v for k, v in arrays.items() if k.startswith(f"{i}.")} for i in range(count)]
    return [EpisodeRecord.from_arrays(part) for part in parts]
