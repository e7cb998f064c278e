"""The data of figures, as plain arrays, taken from a run once. The figures know neither files nor robots."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec, SelectedOutput
from firsthand_onboard.features import error_size
from firsthand_onboard.kinematics import output_error, tracked_output

from ..drawing import axis_labels, body_points, output_names, path_points, plane_of
from ..evaluation import tracking_metrics
from ..robots import EpisodeRecord
from ..units import METRES, Unit

NEWEST_EPISODES = 10
"""Window of the running mean, in episodes, and the most that count as the last episodes."""


@dataclass(frozen=True)
class History:
    """The metrics of one run, by column. Several of them can be drawn into one figure."""

    label: str
    """Name of the run in a legend."""
    columns: Mapping[str, np.ndarray]
    """A field of metrics.jsonl per entry, `(episodes,)`; NaN where it was null or is missing."""

    @staticmethod
    def of(label: str, rows: Sequence[Mapping[str, Any]]) -> "History":
        """The history from the lines of metrics.jsonl."""
        names = {name: None for row in rows for name in row}  # a dict, because it keeps the order
        return History(label, {name: np.asarray([_number(row.get(name)) for row in rows]) for name in names})

    def __len__(self) -> int:
        return len(self.columns["episode"]) if "episode" in self.columns else 0

    def column(self, name: str) -> np.ndarray:
        """One field of all episodes, `(episodes,)`; NaN where it is not known."""
        return self.columns.get(name, np.full(len(self), np.nan))

    def last(self, name: str) -> float:
        """The newest value of a field; NaN when there is none."""
        return float(self.column(name)[-1]) if len(self) else float("nan")

    @property
    def num_recent(self) -> int:
        """How many episodes count as the last ones: ten, but in a short run only its last quarter.

        Otherwise the number of a run of ten episodes would tell how bad its first ones were.
        """
        return min(NEWEST_EPISODES, math.ceil(len(self) / 4))

    def recent_mean(self, name: str) -> float:
        """The mean of a field over the last episodes."""
        return finite_mean(self.column(name)[-self.num_recent :])


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def finite_mean(values: np.ndarray) -> float:
    """The mean of what is finite; NaN when nothing is."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")


def running_mean(values: np.ndarray, window: int = NEWEST_EPISODES) -> np.ndarray:
    """At each episode the mean of it and those before it, `window` at most; what is not finite is left out."""
    return np.asarray([finite_mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))])


@dataclass(frozen=True)
class PathPanel:
    """Paths against their references, for one panel."""

    title: str
    """The references, and the controllers that followed them."""
    pairs: tuple[tuple[np.ndarray, np.ndarray], ...]
    """(reference, path) per trajectory, each `(steps, 2)`; NaN where a step did not happen."""
    error_m: float
    """Mean tracking error."""

    @staticmethod
    def of(title: str, spec: ControlSpec, record: EpisodeRecord) -> "PathPanel":
        """The panel of one record. A tracked output with one entry is drawn over time."""
        steps = record.commands.shape[1]
        path = path_points(spec, record.best_known[:, :steps])
        reference = plane_of(spec, record.references[:, :steps].astype(np.float64))
        pairs = tuple(zip(reference, np.where(record.valid[..., None], path, np.nan), strict=True))
        return PathPanel(title, pairs, _mean_error(spec, record))


def _mean_error(spec: ControlSpec, record: EpisodeRecord) -> float:
    return tracking_metrics(spec, (record,)).mean_error if record.valid.any() else float("nan")


@dataclass(frozen=True)
class PathAxes:
    """The axes of a path panel."""

    labels: tuple[str, str]
    """Of the horizontal and the vertical axis."""
    equal: bool
    """Whether both are lengths and must have one scale."""

    @staticmethod
    def of(spec: ControlSpec, unit: Unit = METRES) -> "PathAxes":
        """x and z for an arm in the vertical plane, otherwise what is measured; one output is drawn over time."""
        return PathAxes(axis_labels(spec, unit.name), equal=spec.num_outputs > 1)


@dataclass(frozen=True)
class Channel:
    """One signal over time and the limits it must keep."""

    name: str
    """Its name, with the unit."""
    values: np.ndarray
    """`(steps,)`."""
    low: float
    """Lower limit."""
    high: float
    """Upper limit."""


@dataclass(frozen=True)
class OutputChannel:
    """One coordinate of the tracked output over time."""

    name: str
    """A description of it."""
    values: np.ndarray
    """`(steps,)`."""
    reference: np.ndarray
    """`(steps,)`."""


@dataclass(frozen=True)
class TimeSeries:
    """One trajectory over time."""

    title: str
    """The references."""
    time: np.ndarray
    """Seconds since the start, `(steps,)`."""
    error_m: np.ndarray
    """Tracking error, `(steps,)`."""
    commands: tuple[Channel, ...]
    """Per command channel."""
    positions: tuple[Channel, ...]
    """Per measured position."""
    outputs: tuple[OutputChannel, ...] = ()
    """Per coordinate of the tracked output."""

    @staticmethod
    def of(title: str, spec: ControlSpec, record: EpisodeRecord, trajectory: int = 0) -> "TimeSeries":
        """One trajectory of a record, by default the first."""
        valid = record.valid[trajectory]
        steps, limits = int(valid.sum()), spec.limits
        measured = record.measured[trajectory, :steps].astype(np.float64)
        reference = record.references[trajectory, :steps]
        output = np.asarray(tracked_output(spec, measured))
        error = error_size(spec, output_error(spec, output, reference))
        return TimeSeries(
            outputs=tuple(
                OutputChannel(name, output[:, i], reference[:, i]) for i, name in enumerate(output_names(spec))
            ),
            title=title,
            time=spec.period_s * np.arange(steps),
            error_m=error,
            commands=tuple(
                Channel(
                    _plain(spec.layout.command_label(i)),
                    record.commands[trajectory, :steps, i],
                    limits.command_low[i],
                    limits.command_high[i],
                )
                for i in range(spec.layout.num_commands)
            ),
            positions=tuple(
                Channel(_position_name(spec, i), measured[:, entry], limits.position_low[i], limits.position_high[i])
                for i, entry in enumerate(spec.layout.position)
            ),
        )


@dataclass(frozen=True)
class Poses:
    """The robot at several instants along one trajectory."""

    title: str
    """The references."""
    bodies: np.ndarray
    """From base to tip, `(poses, points, 2)`."""
    reference: np.ndarray
    """`(steps, 2)`."""
    path: np.ndarray
    """`(steps, 2)`."""

    @staticmethod
    def of(title: str, spec: ControlSpec, record: EpisodeRecord, trajectory: int = 0, count: int = 9) -> "Poses | None":
        """`count` poses, evenly spread over the time of a trajectory; None for a robot whose parts are not known."""
        steps = int(record.valid[trajectory].sum())
        bodies = body_points(spec, record.best_known[trajectory, :steps])
        if bodies is None or not steps:
            return None
        chosen = np.unique(np.linspace(0, steps - 1, count).round().astype(int))
        panel = PathPanel.of(title, spec, record).pairs[trajectory]
        return Poses(title, bodies[chosen], panel[0][:steps], panel[1][:steps])


def _plain(name: str) -> str:
    """tip x, for what is called tip.x in files."""
    return name.replace(".", " ")


def _position_name(spec: ControlSpec, i: int) -> str:
    if spec.layout.measured_units:
        return _plain(spec.layout.measured_label(spec.layout.position[i]))
    name = spec.layout.measured[spec.layout.position[i]].removesuffix(".position")
    if isinstance(spec.kinematics, SelectedOutput):
        return _plain(name)
    return f"{name} ({'rad' if spec.kinematics.joints[i].kind == 'revolute' else 'm'})"
