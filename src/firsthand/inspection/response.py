"""How a channel responds: what kind of response, how strong, how fast, and from which command on."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from firsthand_onboard import ControlSpec

from .free_motion import FreeMotion
from .recording import Push, Recording, paths

Kind = Literal["position", "rate", "acceleration"]
SETTLED = 0.05
"""A response has settled when it stays within this share of its final value."""
UNSETTLED = 0.2
"""A quantity that still changes by this share between the third and the last quarter of a push does not settle."""
SILENT = 1e-4
"""Responses below this share of the largest count as none."""


HIDDEN = 0.3
"""A response that noise leaves below this share of a proportional one is missing."""
FINE = 0.05
"""Where a push of this share of half the range responds, it does not matter whether smaller ones do."""
DRIFTS = 0.05
"""A robot that moves at more than this share of its highest rate under the neutral command is drifting."""
MIN_POINTS = 4
"""Fewer responses cannot tell a dead band from a gain that is convex."""


@dataclass(frozen=True)
class StepResponse:
    """The mean response to the largest push, + minus −, halved; one entry per period after the command."""

    time_s: Float[np.ndarray, " steps"]
    position: Float[np.ndarray, " steps"]
    rate: Float[np.ndarray, " steps"]
    acceleration: Float[np.ndarray, " steps"]
    """The contribution of each period to the rate beyond the robot's own motion, per second."""
    command: float
    """The push, in the unit of the command, from neutral."""

    def of(self, kind: Kind) -> Float[np.ndarray, " steps"]:
        """The quantity that settles in a response of this kind."""
        return getattr(self, kind)


@dataclass(frozen=True)
class GainPoint:
    """What one command does in the long run, with drift at the neutral command taken away."""

    command: float
    """From neutral, in the unit of the command."""
    response: float
    standard_error: float
    pushes: int


@dataclass(frozen=True)
class DeadBand:
    """Where the response begins, per direction; in the unit of the command, from neutral."""

    edge: float
    """The estimate, zero or more; NaN when nothing responded."""
    silent: float
    """The largest push that had certainly no response; 0 when there was none."""
    responding: float
    """The smallest push with one; NaN when there was none."""
    is_known: bool = True
    """Whether `edge` is more than a guess; otherwise all that is known is that it is at most `responding`."""


@dataclass(frozen=True)
class Quantity:
    """A position that answers to a channel, and where its rate is found."""

    position: int
    """Entry of the measurement."""
    velocity: int | None
    """Entry of its velocity, if that is measured."""


def quantity_of(spec: ControlSpec, which: int) -> Quantity:
    """Position number `which` of the layout."""
    layout = spec.layout
    return Quantity(layout.position[which], layout.velocity[which] if layout.velocity else None)


def rates(
    quantity: Quantity, path: Float[np.ndarray, "pushes steps measured"], start_rate: np.ndarray, period_s: float
) -> Float[np.ndarray, "pushes steps"]:
    """The rate of a position after each period of a push: measured, or from differences."""
    if quantity.velocity is not None:
        return path[:, :, quantity.velocity] + start_rate[:, None]
    position = path[:, :, quantity.position]
    return np.diff(position, axis=1, prepend=0.0) / period_s


def step_response(
    recording: Recording,
    pushes: tuple[Push, ...],
    quantity: Quantity,
    motion: FreeMotion,
    *,
    stands_still: bool,
    period_s: float,
    half_range: float,
) -> StepResponse:
    """The mean over pushes of one amplitude, each taken with its sign and counted in the direction of +.

    Where no rates are measured, what a robot that stands still does by itself is to go on as it moves.
    """
    steps = min(p.steps for p in pushes)
    starts, signs = np.asarray([p.start for p in pushes]), np.asarray([p.sign for p in pushes])
    path = paths(recording, starts, steps)
    zero = np.zeros(len(pushes))
    rate = rates(quantity, path, zero, period_s)
    surprise = motion.surprise[np.minimum(starts[:, None] + np.arange(steps), len(recording) - 1)]
    if quantity.velocity is not None:
        added = surprise[:, :, quantity.velocity] / period_s
    elif stands_still:
        added = np.diff(rate, axis=1, prepend=0.0) / period_s
    else:
        added = surprise[:, :, quantity.position] / period_s**2
    return StepResponse(
        time_s=period_s * np.arange(1, steps + 1),
        position=_by_sign(path[:, :, quantity.position], signs),
        rate=_by_sign(rate, signs),
        acceleration=_by_sign(added, signs),
        command=pushes[0].amplitude * half_range,
    )


def mean_motion(
    recording: Recording, pushes: tuple[Push, ...], entry: int
) -> tuple[Float[np.ndarray, " steps"], Float[np.ndarray, " steps"]]:
    """How far any entry of the measurement moves after a push towards +, and the standard error of that."""
    starts, signs = np.asarray([p.start for p in pushes]), np.asarray([p.sign for p in pushes])
    moved = paths(recording, starts, min(p.steps for p in pushes))[:, :, entry]
    left = np.stack([row - _mean(moved[signs == sign]) for row, sign in zip(moved, signs, strict=True)])
    return _by_sign(moved, signs), np.std(left, axis=0) / np.sqrt(len(pushes))


def delay_of(motion: Float[np.ndarray, " steps"]) -> float:
    """Periods by which a motion is late: to 63 % of where it settles, or to where its last quarter began as a line."""
    late, before = last_quarter(len(motion)), motion[len(motion) // 2 : 3 * len(motion) // 4]
    end = float(motion[late].mean())
    if len(before) == 0 or late.stop - late.start < 2 or not np.isfinite(motion).all():
        return float("nan")
    if abs(end - before.mean()) < UNSETTLED * abs(end):
        return rise(motion, end, 1 - np.exp(-1.0))
    times = np.arange(late.start, late.stop) + 1.0
    slope = np.polyfit(times, motion[late], 1)[0]
    return float(np.clip(times.mean() - end / slope, 0.0, len(motion))) if slope != 0 else float("nan")


def _by_sign(values: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Half of (mean over + minus mean over −), or just one of them where the other is missing."""
    means = [_mean(values[signs == sign]) for sign in (1.0, -1.0)]
    plus, minus = (m if np.isfinite(m).any() else None for m in means)
    if plus is None or minus is None:
        return means[0] if minus is None else -means[1]
    return (plus - minus) / 2


def _mean(values: np.ndarray) -> np.ndarray:
    known = np.isfinite(values)
    count = known.sum(axis=0)
    return np.where(count > 0, np.where(known, values, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan)


def last_quarter(steps: int) -> slice:
    """The periods in which a push has had time to settle."""
    return slice(steps - max(steps // 4, 1), steps)


def kind_of(response: StepResponse, *, stands_still: bool) -> Kind:
    """Which derivative of the position the command sets in the end: the first one that settles during a push.

    Of a robot that moves by itself only the immediate effect can be told, which is an acceleration.
    """
    if not stands_still:
        return "acceleration"
    for kind in ("position", "rate"):
        values = response.of(kind)
        steps = len(values)
        late, before = values[last_quarter(steps)], values[steps // 2 : 3 * steps // 4]
        if len(before) == 0 or not np.isfinite(late).all():
            continue
        if abs(late.mean() - before.mean()) < UNSETTLED * abs(late.mean()):
            return kind
    return "acceleration"


def rise(values: Float[np.ndarray, " steps"], final: float, share: float) -> float:
    """After how many periods a response first passes a share of its final value, with straight lines in between."""
    if final == 0:
        return float("nan")
    ratio = np.concatenate([[0.0], values / final])
    passed = np.flatnonzero(ratio >= share)
    if not len(passed):
        return float("nan")
    k = int(passed[0])
    return k - 1 + (share - ratio[k - 1]) / (ratio[k] - ratio[k - 1])


def settling(values: Float[np.ndarray, " steps"], final: float, tolerance: float) -> float:
    """Periods from the command until the response stays near its final value; NaN if that is not seen in time."""
    outside = np.flatnonzero(np.abs(values - final) > tolerance * abs(final))
    after = 1 if not len(outside) else int(outside[-1]) + 2
    return float(after) if after <= 0.8 * len(values) else float("nan")


def long_run(
    kind: Kind,
    quantity: Quantity,
    recording: Recording,
    motion: FreeMotion,
    starts: np.ndarray,
    steps: int,
    dead: int,
    period_s: float,
    stands_still: bool,
) -> Float[np.ndarray, " pushes"]:
    """What a constant command leads to, one number per push: displacement, rate or acceleration."""
    path = paths(recording, starts, steps)
    if kind == "position":
        return path[:, last_quarter(steps), quantity.position].mean(axis=1)
    if kind == "rate":
        if quantity.velocity is not None:
            at_start = recording.before[starts, quantity.velocity]
            return rates(quantity, path, at_start, period_s)[:, last_quarter(steps)].mean(axis=1)
        late = last_quarter(steps)
        position = np.concatenate([np.zeros((len(path), 1)), path[:, :, quantity.position]], axis=1)
        return (position[:, late.stop] - position[:, late.start]) / ((late.stop - late.start) * period_s)
    rows = np.minimum(starts[:, None] + np.arange(min(dead + 1, steps - 1), steps), len(recording) - 1)
    if quantity.velocity is not None:
        return motion.surprise[rows, quantity.velocity].mean(axis=1) / period_s
    if stands_still and steps - dead > 3:
        return _curvature(path[:, dead:, quantity.position]) / period_s**2
    return motion.surprise[rows, quantity.position].mean(axis=1) / period_s**2


def _curvature(position: Float[np.ndarray, "pushes steps"]) -> Float[np.ndarray, " pushes"]:
    """The constant second difference that fits best: less noisy than their mean, which only the ends decide."""
    time = np.arange(position.shape[1])
    return 2 * (np.linalg.pinv(np.vander(time, 3)) @ position.T)[0]


def gain_curve(
    kind: Kind,
    quantity: Quantity,
    recording: Recording,
    motion: FreeMotion,
    pushes: tuple[Push, ...],
    *,
    dead: int,
    stands_still: bool,
    period_s: float,
    half_range: float,
) -> tuple[GainPoint, ...]:
    """The long-run response for every command that was tried, in rising order.

    Standard errors come from the same measure taken where the robot rested, and from repeats.
    """
    steps = recording.push_steps
    enough = {p.fractions[p.channel] for p in pushes if p.steps == steps}
    quiet = np.arange(1, max(recording.rest - steps, 2), max(steps // 4, 1))
    at_rest = long_run(kind, quantity, recording, motion, quiet, steps, dead, period_s, stands_still)
    at_rest = at_rest[np.isfinite(at_rest)]
    drift, spread = (at_rest.mean(), at_rest.std()) if len(at_rest) else (0.0, 0.0)
    found: dict[float, np.ndarray] = {}
    where: dict[float, np.ndarray] = {}
    for fraction in sorted({p.fractions[p.channel] for p in pushes}):
        # A shortened push may not have settled: it counts only where none went on.
        least = steps if fraction in enough else 0.6 * steps
        same = [p for p in pushes if p.fractions[p.channel] == fraction and p.steps >= least]
        values = [
            long_run(kind, quantity, recording, motion, np.asarray([p.start]), p.steps, dead, period_s, stands_still)[0]
            for p in same
        ]
        known = np.isfinite(values)
        found[fraction] = np.asarray(values)[known]
        where[fraction] = recording.before[[p.start for p in same], quantity.position][known]
    if kind == "rate" and abs(drift) > DRIFTS * max((np.abs(v).max(initial=0.0) for v in found.values()), default=0.0):
        slope = drift_slope(found, where)
        home = recording.before[: recording.rest, quantity.position].mean()
        found = {fraction: values - slope * (where[fraction] - home) for fraction, values in found.items()}
    if kind == "acceleration":  # what the robot does by itself differs from push to push, not only in size
        spread = max([spread, *(values.std(ddof=1) for values in found.values() if len(values) > 2)])
    points = []
    for fraction, values in found.items():
        if not len(values):
            continue
        error = max(spread, values.std(ddof=1) if len(values) > 2 else 0.0) / np.sqrt(len(values))
        points.append(GainPoint(fraction * half_range, float(values.mean() - drift), float(error), len(values)))
    return tuple(points)


def drift_slope(found: dict[float, np.ndarray], where: dict[float, np.ndarray]) -> float:
    """How the rate under one and the same command falls with the position, as of a tank that leaks.

    The slope that all commands share, by least squares; 0 where it does not explain most of what differs.
    """
    values = np.concatenate([v - v.mean() for v in found.values() if len(v)])
    places = np.concatenate([where[fraction] - where[fraction].mean() for fraction, v in found.items() if len(v)])
    if not places.any():
        return 0.0
    slope = float(places @ values / (places @ places))
    left = values - slope * places
    return slope if slope < 0 and left @ left < 0.5 * (values @ values) else 0.0


def dead_band(points: tuple[GainPoint, ...], direction: float, half_range: float) -> DeadBand:
    """Where the response of one direction begins.

    Between the largest push without a response and the smallest with one; inside of that by fitting
    g (|u| − edge)^p, p from 1 to 3, to the smallest responses. A push counts as without a response only where noise
    would not hide a proportional one. Without any such push the edge is known where the response begins early, or where
    the responses clearly begin later than at 0.
    """
    mine = sorted((abs(p.command), abs(p.response), p.standard_error) for p in points if p.command * direction > 0)
    if not mine:
        return DeadBand(float("nan"), 0.0, float("nan"))
    u, r, error = (np.asarray(v) for v in zip(*mine, strict=True))
    responds = (r > SILENT * r.max()) & (r > 4 * error)
    if not responds.any():
        return DeadBand(float("nan"), 0.0, float("nan"))
    silent = ~responds & (r + 4 * error < HIDDEN * r.max() * u / u[-1])
    low = float(u[silent][-1]) if silent.any() else 0.0
    above = responds & (u > low)
    if not above.any():
        return DeadBand(float("nan"), low, float("nan"))
    u, r, error = (v[above][:5] for v in (u, r, error))
    high = float(u[0])
    edge = _edge(u, r, np.maximum(error, 0.02 * r), low, high)
    is_known = low > 0 or high <= FINE * half_range or (edge > 0 and len(u) >= MIN_POINTS)
    return DeadBand(edge, low, high, is_known)


def _edge(u: np.ndarray, r: np.ndarray, error: np.ndarray, low: float, high: float) -> float:
    if len(u) == 1:
        return (low + high) / 2 if low else 0.0
    candidates = np.linspace(low, high, 61)[:-1]
    missed = np.asarray([_misfit(u - c, r, (r / error) ** 2) for c in candidates])
    best = int(np.argmin(missed))
    # Where no push was without a response, there is a dead band only if the responses clearly say so.
    if low == 0 and missed[0] < missed[best] + 9:
        return 0.0
    return float(candidates[best])


def _misfit(u: np.ndarray, r: np.ndarray, weight: np.ndarray) -> float:
    """What the best power law leaves, in standard errors squared; a line is preferred a little."""
    x, y = np.log(u), np.log(r)
    x, y = x - np.average(x, weights=weight), y - np.average(y, weights=weight)
    power = 1.0
    if len(u) >= MIN_POINTS:
        power = float(np.clip(np.sum(weight * x * y) / np.sum(weight * x * x), 1.0, 3.0))
    return float(np.sum(weight * (y - power * x) ** 2) + 0.1 * (power - 1.0) ** 2)
