"""How well a reference was followed: the metrics of the paper's table 1, and a few that keep them honest."""

import math
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Bool, Float

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import error_size
from firsthand_onboard.kinematics import output_error, tracked_output

from ..robots.base import EpisodeRecord

LIMIT_TOLERANCE = 0.005
"""A joint within this share of its range from a limit counts as being at the limit."""
CHATTER_SHARE = 0.1
"""A command chatters where two changes of more than this share of its range follow each other, one each way."""

SATURATION_SHARE = 0.01
"""A command within this share of its range from a limit counts as being at the limit."""
MIN_NOISE_SAMPLES = 50
NORMAL_MEDIAN = 0.6745
"""Median of the size of a normal variable with a standard deviation of one."""
MIN_EFFECT_SAMPLES = 4
"""Samples per coefficient that `command_effect` needs."""
MIN_UNEXPLAINED = 1e-3
"""An unexplained change below this share of a channel's declared change per step is too small to be used."""


@dataclass(frozen=True)
class TrackingMetrics:
    """Table 1 for one reference or several together.

    Errors and speeds are in the unit of the tracked output, `Task.unit`. They are those of the true state where it is
    known, as in a simulation; what the sensors made of it stands beside.
    """

    mean_error: float
    """Mean Euclidean tracking error over all steps."""
    max_error: float
    """Largest tracking error."""
    rms_error: float
    """Root of the mean squared tracking error."""
    measured_mean_error: float
    """Mean tracking error as the sensors showed it; the same as `mean_error` where the truth is not known."""
    mean_speed: float
    """Mean speed of the reference (of the reference, so that chatter does not improve ρ)."""
    max_speed: float
    """Highest speed of the reference."""
    rho_s: float
    """ρ: largest error over highest speed."""
    measured_mean_speed: float
    """Mean speed of the tracked output itself."""
    command_change: float
    """Mean |Δu| per step and channel."""
    chatter: float
    """Share of steps and channels at which a command reverses a large change, of more than `CHATTER_SHARE`."""
    limit_hits: int
    """Steps at which a joint was at a limit."""
    valid_share: float
    """Share of the references' steps that were followed; everything above is over these steps alone."""

    def as_dict(self) -> dict[str, float | int]:
        """Plain numbers, for JSON."""
        return asdict(self)


def tracking_errors(
    spec: ControlSpec, record: EpisodeRecord, *, as_measured: bool = False
) -> Float[np.ndarray, " steps"]:
    """|p(x_k) − r_k| at every step k = 0 … H−1 that counts, one trajectory after the other.

    Of the true state where it is known, unless `as_measured` asks for what the sensors showed.
    """
    values = record.measured if as_measured else record.best_known
    steps = record.commands.shape[1]
    output = np.asarray(tracked_output(spec, values[:, :steps].astype(np.float64)))
    error = error_size(spec, output_error(spec, output, record.references[:, :steps]))
    return error[seen_steps(record)]


def mean_absolute_errors(spec: ControlSpec, records: tuple[EpisodeRecord, ...]) -> dict[str, float]:
    """The mean absolute error of each tracked output by its name, over all steps that count; NaN where none does.

    Of the true state where it is known. What an orientation's three entries mean one by one is in `output_error`.
    """
    found = []
    for record in records:
        steps = record.commands.shape[1]
        output = np.asarray(tracked_output(spec, record.best_known[:, :steps].astype(np.float64)))
        found.append(np.abs(output_error(spec, output, record.references[:, :steps]))[seen_steps(record)])
    errors = np.concatenate(found)
    return {name: _mean(errors[:, i]) for i, name in enumerate(spec.output_names)}


def noise_floor(spec: ControlSpec, record: EpisodeRecord) -> float:
    """The mean tracking error that the sensors alone would show of a robot without any; NaN where that is not known.

    The difference between what was measured and the truth, where that is known. Elsewhere the noise of each coordinate
    follows from its fourth differences, in which smooth motion almost vanishes.
    """
    steps = record.commands.shape[1]
    output = np.asarray(tracked_output(spec, record.measured[:, :steps].astype(np.float64)))
    if record.truth is not None:
        true = np.asarray(tracked_output(spec, record.truth[:, :steps].astype(np.float64)))
        return _mean(error_size(spec, output_error(spec, output, true))[seen_steps(record)])
    order = 4
    usable = seen_steps(record)
    whole = np.stack([usable[:, k : steps - order + k] for k in range(order + 1)]).all(axis=0)
    differences = np.diff(output, n=order, axis=1)[whole]
    if len(differences) < MIN_NOISE_SAMPLES:
        return float("nan")
    deviations = np.median(np.abs(differences), axis=0) / (NORMAL_MEDIAN * math.sqrt(math.comb(2 * order, order)))
    size = output.shape[-1]
    # The mean length of a normal vector of this size, per root of its mean square.
    shape = math.sqrt(2 / size) * math.exp(math.lgamma((size + 1) / 2) - math.lgamma(size / 2))
    return float(shape * error_size(spec, deviations))


def whole_error(spec: ControlSpec, record: EpisodeRecord) -> float:
    """The mean error over every step that was asked for; a robot that ended early counts as standing where it ended.

    For comparing controllers of robots that fall: the error over the steps that happened favours a robot that falls at
    once.
    """
    steps = record.commands.shape[1]
    output = np.asarray(tracked_output(spec, record.best_known[:, :steps].astype(np.float64)))
    return _mean(error_size(spec, output_error(spec, output, record.references[:, :steps])).reshape(-1))


def outside_share(spec: ControlSpec, record: EpisodeRecord) -> float:
    """Share of the steps that happened at which a position was outside its limits; of the truth where it is known."""
    steps = record.commands.shape[1]
    position = record.best_known[:, 1 : steps + 1][..., list(spec.layout.position)][record.valid]
    low, high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
    return _mean(((position < low) | (position > high)).any(axis=-1).astype(float))


def seen_steps(record: EpisodeRecord) -> Bool[np.ndarray, "trajectories steps"]:
    """Steps that happened and whose measurement is finite: a sensor that dropped out leaves no error to speak of."""
    return record.valid & np.isfinite(record.measured[:, :-1]).all(axis=-1)


def tracking_metrics(spec: ControlSpec, records: tuple[EpisodeRecord, ...]) -> TrackingMetrics:
    """The metrics over all steps of all records together."""
    errors = np.concatenate([tracking_errors(spec, record) for record in records])
    if errors.size == 0:
        nothing = float("nan")
        return TrackingMetrics(*(nothing,) * 10, limit_hits=0, valid_share=0.0)
    reference_speed, measured_speed, change, reverses = [], [], [], []
    hits = 0
    low, high = np.asarray(spec.limits.position_low), np.asarray(spec.limits.position_high)
    margin = LIMIT_TOLERANCE * (high - low)
    for record in records:
        steps, valid = record.commands.shape[1], seen_steps(record)
        both = valid[:, 1:] & valid[:, :-1]
        known = record.best_known[:, :steps]
        output = np.asarray(tracked_output(spec, known.astype(np.float64)))
        for speeds, points in (
            (reference_speed, record.references[:, :steps].astype(np.float64)),
            (measured_speed, output),
        ):
            speeds.append(error_size(spec, np.diff(points, axis=1))[both] / spec.period_s)
        change.append(np.abs(np.diff(record.commands, axis=1))[both].reshape(-1))
        reverses.append(_reversals(spec, record.commands)[both[:, 1:] & both[:, :-1]].reshape(-1))
        position = known[..., list(spec.layout.position)]
        at_limit = ((position <= low + margin) | (position >= high - margin)).any(axis=-1)
        hits += int(np.sum(at_limit & valid))
    reference_speeds = np.concatenate(reference_speed)
    fastest = float(np.max(reference_speeds, initial=0.0))
    return TrackingMetrics(
        mean_error=float(np.mean(errors)),
        max_error=float(np.max(errors)),
        rms_error=float(np.sqrt(np.mean(errors**2))),
        measured_mean_error=_mean(
            np.concatenate([tracking_errors(spec, record, as_measured=True) for record in records])
        ),
        mean_speed=_mean(reference_speeds),
        max_speed=fastest,
        rho_s=float(np.max(errors) / fastest) if fastest > 0 else float("nan"),
        measured_mean_speed=_mean(np.concatenate(measured_speed)),
        command_change=_mean(np.concatenate(change)),
        chatter=_mean(np.concatenate(reverses)),
        limit_hits=hits,
        valid_share=errors.size / sum(record.valid.size for record in records),
    )


def saturation(spec: ControlSpec, record: EpisodeRecord) -> float:
    """Share of steps and channels at which the command is at a limit of its range."""
    low, high = np.asarray(spec.limits.command_low), np.asarray(spec.limits.command_high)
    near = SATURATION_SHARE * (high - low)
    return _mean(((record.commands <= low + near) | (record.commands >= high - near))[record.valid].reshape(-1))


def command_effect(spec: ControlSpec, record: EpisodeRecord) -> float:
    """Share of what the robot's own motion leaves open of its next step that commands explain; 0 for no effect.

    By linear regression: the change of each measured entry on the last two measurements alone, and with the commands of
    the last `command_memory` steps as well. The largest share of all entries, corrected for the number of coefficients.
    NaN where too little was measured, or no command varied.
    """
    memory = max(spec.layout.command_memory, 1)
    steps = record.commands.shape[1]
    measured, commands = record.measured.astype(np.float64), record.commands.astype(np.float64)
    times = np.arange(memory, steps)
    if times.size == 0:
        return float("nan")
    happened = np.stack([record.valid[:, times - k] for k in range(memory + 1)]).all(axis=0)
    center, scale = np.asarray(spec.scales.measured_center), np.asarray(spec.scales.measured_scale)
    own = [(measured[:, times - k] - center)[happened] / scale for k in (0, 1)]
    pushed = np.concatenate([commands[:, times - k][happened] for k in range(memory + 1)], axis=1)
    change = (measured[:, times + 1] - measured[:, times])[happened] / np.asarray(spec.scales.change_scale)
    pushed = pushed - (pushed.mean(axis=0) if len(pushed) else 0.0)
    constant = np.ones((len(change), 1))
    without = np.concatenate([constant, *own], axis=1)
    both = np.concatenate([without, pushed], axis=1)
    fine = np.isfinite(both).all(axis=1) & np.isfinite(change).all(axis=1)
    count, coefficients = int(fine.sum()), both.shape[1]
    if count < MIN_EFFECT_SAMPLES * coefficients or not np.ptp(pushed[fine], axis=0).any():
        return float("nan")

    def left_open(inputs: np.ndarray) -> np.ndarray:
        found, *_ = np.linalg.lstsq(inputs[fine], change[fine], rcond=None)
        return np.sum((change[fine] - inputs[fine] @ found) ** 2, axis=0) / (count - inputs.shape[1])

    before, after = left_open(without), left_open(both)
    share = np.where(before > MIN_UNEXPLAINED**2, 1.0 - after / np.maximum(before, MIN_UNEXPLAINED**2), 0.0)
    return float(max(share.max(), 0.0))


def _reversals(spec: ControlSpec, commands: np.ndarray) -> Bool[np.ndarray, "trajectories steps_less_two commands"]:
    """Where a command changes by a large share of its range, and did so in the other direction a step before."""
    change = np.diff(commands.astype(np.float64), axis=1)
    large = CHATTER_SHARE * (np.asarray(spec.limits.command_high) - np.asarray(spec.limits.command_low))
    smaller = np.minimum(np.abs(change[:, 1:]), np.abs(change[:, :-1]))
    return (change[:, 1:] * change[:, :-1] < 0) & (smaller > large)


def _mean(values: np.ndarray) -> float:
    """The mean, or NaN when there is nothing to average."""
    return float(np.mean(values)) if values.size else float("nan")
