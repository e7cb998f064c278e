"""From a recording to findings about the robot."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from firsthand_onboard import ControlSpec, SelectedOutput

from .coasting import comes_to_rest
from .coupling import CLEAR, Coupling, coupling
from .free_motion import FreeMotion, free_motion
from .onset import find_onset
from .plan import MAX_PUSH_S, MAX_PUSH_STEPS
from .recording import Push, Recording
from .response import (
    SETTLED,
    DeadBand,
    GainPoint,
    Kind,
    Quantity,
    StepResponse,
    dead_band,
    delay_of,
    gain_curve,
    kind_of,
    last_quarter,
    mean_motion,
    quantity_of,
    rise,
    settling,
    step_response,
)
from .velocities import swapped_velocities

MAX_WANDER = 0.01
"""A robot whose positions move over this share of their range under the neutral command does not stand still."""
WANDERS = 2.0
"""A spread at rest of more than this many times the jumps is slow wandering, and not noise."""
SWINGS_ALONG = 0.2
"""A position that moves at least this share as far (of its range) as the farthest can stand for a channel."""


@dataclass(frozen=True)
class ChannelFindings:
    """One command channel."""

    name: str
    responds: bool
    amplitude: float
    """The largest push that was repeated, as a share of half the command range."""
    moves: str = ""
    """The position that answers most."""
    quantity: Quantity | None = None
    kind: Kind | None = None
    """What a constant command sets in the long run: a position, a rate or an acceleration."""
    settles: bool = True
    """Whether it was seen to settle; where it was not, 63 % and gains are at least what is given here."""
    is_certain: bool = True
    """Whether `kind` is certain; otherwise pushes were too short to tell a rate from an acceleration."""
    dead_time_steps: int | None = None
    """Whole control periods before anything shows; the true dead time is at most one more, and may be less."""
    rise_steps: float = float("nan")
    """Periods from the command to 63 % of the response, dead time included."""
    settling_steps: float = float("nan")
    """Periods from the command until the response stays within 5 %, dead time included; NaN if not seen."""
    gain_plus: float = float("nan")
    """Slope from the edge of the dead band to the largest push, towards higher commands."""
    gain_minus: float = float("nan")
    """The same towards lower commands."""
    dead_band_plus: DeadBand | None = None
    dead_band_minus: DeadBand | None = None
    curve: tuple[GainPoint, ...] = ()
    """The static gain: what each command leads to in the long run."""
    response: StepResponse | None = None

    @property
    def lag_steps(self) -> float:
        """Periods from the end of the dead time to 63 % of the response."""
        return self.rise_steps - (self.dead_time_steps or 0)

    @property
    def is_contradictory(self) -> bool:
        """Whether most of the response seems to come before its dead time is over: noise explains one period of that.

        Then what was measured is not the response to the command, as where a velocity is that of another position.
        """
        return self.lag_steps < -1.0

    def least_gain(self, direction: float) -> float:
        """Slope from neutral to the largest push: what the gain is at least, wherever the dead band ends."""
        mine = [p for p in self.curve if p.command * direction > 0]
        top = max(mine, key=lambda p: abs(p.command), default=None)
        return float("nan") if top is None else top.response / top.command


@dataclass(frozen=True)
class Findings:
    """The findings of an inspection, in control periods and in the robot's own units."""

    channels: tuple[ChannelFindings, ...]
    stands_still: bool
    """Whether the robot stays where it is under the neutral command."""
    noise: Float[np.ndarray, " measured"]
    """Standard deviation at rest; of a robot that moves by itself, of what cannot be foreseen one period ahead."""
    drift: Float[np.ndarray, " measured"]
    """Mean change per second under the neutral command."""
    coupling: Coupling
    tracked_delay_steps: float | None
    """Periods by which what is tracked follows a command late, where it is no position; see `tracked_delay`."""
    notes: tuple[str, ...]
    """Notes for the reader."""


def identify(recording: Recording, spec: ControlSpec) -> Findings:
    """Everything that the recording tells."""
    motion = free_motion(recording, rates_measured=bool(spec.layout.velocity))
    stands_still, noise, drift = at_rest(recording, spec, motion)
    half = (np.asarray(spec.limits.command_high) - np.asarray(spec.limits.command_low)) / 2
    channels = tuple(
        _channel(recording, spec, motion, c, float(half[c]), noise if stands_still else None)
        for c in range(spec.layout.num_commands)
    )
    tops = np.asarray([c.amplitude for c in channels])
    dead = [c.dead_time_steps for c in channels if c.dead_time_steps is not None]
    steps = recording.push_steps if stands_still else min(max(dead, default=0) + 4, recording.push_steps)
    effects = coupling(recording, tops, min(steps, _shortest(recording, tops)))
    late = tracked_delay(recording, spec, tops) if stands_still else None
    notes = _notes(recording, spec, channels, stands_still)
    sensed = noise_of(recording, noise) if stands_still else noise
    return Findings(channels, stands_still, sensed, drift, effects, late, notes)


def at_rest(
    recording: Recording, spec: ControlSpec, motion: FreeMotion
) -> tuple[bool, Float[np.ndarray, " measured"], Float[np.ndarray, " measured"]]:
    """Whether the robot stands still, its noise, and its drift per second."""
    change = recording.change[: recording.rest]
    whole = np.isfinite(change).all() and recording.joined[1 : recording.rest].all()
    known = change[np.isfinite(change).all(axis=1)]
    drift = known.mean(axis=0) / spec.period_s if len(known) else np.zeros(change.shape[1])
    if not whole or len(change) < 3:
        return False, motion.spread, drift
    path = np.concatenate([np.zeros((1, change.shape[1])), np.cumsum(change, axis=0)])
    time = np.linspace(-1.0, 1.0, len(path))
    trend = path.mean(axis=0) + np.outer(time, (time @ path) / (time @ time))
    spread = np.sqrt(np.sum((path - trend) ** 2, axis=0) / (len(path) - 2))
    positions = np.asarray(spec.layout.position)
    extent = np.asarray(spec.limits.position_high) - np.asarray(spec.limits.position_low)
    # Noise spans about six of its standard deviations, and a steady drift is told from motion.
    wanders = np.ptp(path - trend, axis=0) - 8 * _jumps(path)
    still = bool((wanders[positions] < MAX_WANDER * extent).all())
    return still, spread if still else motion.spread, drift


def noise_of(recording: Recording, spread: Float[np.ndarray, " measured"]) -> Float[np.ndarray, " measured"]:
    """The noise of each entry at rest: `spread` about a line, or what jumps where that is mostly slow wandering.

    Second differences have no part of a curve, as of a wall that warms, but miss noise that lasts for some periods.
    """
    jumps = _jumps(np.cumsum(recording.change[: recording.rest], axis=0))
    return np.where((jumps > 0) & (spread > WANDERS * jumps), jumps, spread)


def _jumps(path: Float[np.ndarray, "steps measured"]) -> Float[np.ndarray, " measured"]:
    return np.std(np.diff(path, n=2, axis=0), axis=0) / np.sqrt(6)


def _shortest(recording: Recording, tops: np.ndarray) -> int:
    """The length that most of the largest pushes reached."""
    lengths = [p.steps for p in recording.pushes if p.channel >= 0 and np.isclose(p.amplitude, tops[p.channel])]
    return int(np.percentile(lengths, 20)) if lengths else recording.push_steps


def _top(recording: Recording, channel: int) -> tuple[float, tuple[Push, ...]]:
    """The amplitude that was repeated, or the largest there was, and its pushes that lasted long enough."""
    pushes = recording.alone(channel)
    if not pushes:
        return 0.0, ()
    randomized = [p for p in pushes if p.randomized]
    amplitude = (randomized or pushes)[-1].amplitude if randomized else max(p.amplitude for p in pushes)
    return amplitude, tuple(p for p in pushes if np.isclose(p.amplitude, amplitude))


def tracked_delay(recording: Recording, spec: ControlSpec, tops: np.ndarray) -> float | None:
    """Periods by which tracked outputs that are no positions follow a command late, at most.

    None where all tracked outputs are positions, or follow from them; NaN where none was seen clearly.
    """
    others = set(spec.kinematics.indices if isinstance(spec.kinematics, SelectedOutput) else ())
    others -= set(spec.layout.position)
    if not others:
        return None
    delays = [float("nan")]
    for channel, top in enumerate(tops):
        pushes = tuple(p for p in recording.alone(channel) if np.isclose(p.amplitude, top))
        if len(pushes) < 4:
            continue
        pushes = _longest(pushes)
        for entry in others:
            motion, error = mean_motion(recording, pushes, entry)
            if abs(motion[-1]) > CLEAR * error[-1]:
                delays.append(delay_of(motion))
    return max((delay for delay in delays if np.isfinite(delay)), default=float("nan"))


def _longest(pushes: tuple[Push, ...]) -> tuple[Push, ...]:
    """The pushes that lasted longest, which show what settles; at least three where there are as many."""
    enough = sorted((p.steps for p in pushes), reverse=True)[: min(3, len(pushes))][-1]
    return tuple(p for p in pushes if p.steps >= enough)


def _channel(
    recording: Recording,
    spec: ControlSpec,
    motion: FreeMotion,
    channel: int,
    half_range: float,
    noise: Float[np.ndarray, " measured"] | None,
) -> ChannelFindings:
    name, period = spec.layout.commands[channel], spec.period_s
    amplitude, pushes = _top(recording, channel)
    randomized = tuple(p for p in pushes if p.randomized)
    onset = find_onset(recording, randomized if len(randomized) >= 6 else pushes, motion, noise)
    if onset is None:
        return ChannelFindings(name, responds=False, amplitude=amplitude)
    pushes = _longest(pushes)
    stands_still = noise is not None
    responses = [
        step_response(
            recording,
            pushes,
            quantity_of(spec, i),
            motion,
            stands_still=stands_still,
            period_s=period,
            half_range=half_range,
        )
        for i in range(len(spec.layout.position))
    ]
    extent = np.asarray(spec.limits.position_high) - np.asarray(spec.limits.position_low)
    early = slice(None) if stands_still else slice(0, onset.steps + 4)
    size = [np.nanmax(np.abs(r.position[early])) / e for r, e in zip(responses, extent, strict=True)]
    kinds = [_kind(recording, spec, channel, i, response, onset.steps, noise) for i, response in enumerate(responses)]
    most = int(np.argmax(size))
    # What only swings along with another position says little about the command.
    far = [i for i in range(len(kinds)) if size[i] > SWINGS_ALONG * size[most]]
    settled = [i for i in far if kinds[i].settles and kinds[i].kind != "acceleration"]
    if settled:
        most = max(settled, key=lambda i: size[i])
    quantity, response = quantity_of(spec, most), responses[most]
    kind, settles, is_certain = kinds[most]
    values = response.of(kind)
    late = last_quarter(len(values)) if kind != "acceleration" else slice(min(onset.steps + 1, len(values) - 1), None)
    final = float(np.nanmean(values[late]))
    curve = gain_curve(
        kind,
        quantity,
        recording,
        motion,
        recording.alone(channel),
        dead=onset.steps,
        stands_still=stands_still,
        period_s=period,
        half_range=half_range,
    )
    plus, minus = (dead_band(curve, direction, half_range) for direction in (1.0, -1.0))
    error = max((p.standard_error for p in curve), default=0.0)
    tolerance = max(SETTLED, 4 * error / max(abs(final), 1e-300))
    return ChannelFindings(
        name=name,
        responds=True,
        amplitude=amplitude,
        moves=spec.layout.measured[quantity.position],
        quantity=quantity,
        kind=kind,
        settles=settles,
        is_certain=is_certain,
        dead_time_steps=onset.steps,
        rise_steps=rise(values, final, 1 - np.exp(-1.0)),
        settling_steps=settling(values, final, tolerance) if kind != "acceleration" and settles else float("nan"),
        gain_plus=_gain(curve, plus, 1.0),
        gain_minus=_gain(curve, minus, -1.0),
        dead_band_plus=plus,
        dead_band_minus=minus,
        curve=curve,
        response=response,
    )


class _Kind(NamedTuple):
    """What a command sets, with `settles` and `is_certain` of `ChannelFindings`."""

    kind: Kind
    settles: bool = True
    is_certain: bool = True


def _kind(
    recording: Recording,
    spec: ControlSpec,
    channel: int,
    which: int,
    response: StepResponse,
    dead: int,
    noise: Float[np.ndarray, " measured"] | None,
) -> _Kind:
    kind, at = kind_of(response, stands_still=noise is not None), spec.layout.position[which]
    if noise is None or kind != "acceleration":
        return _Kind(kind)
    stops = comes_to_rest(recording, channel, at, dead, float(noise[at]))
    # A speed that neutral ends was set by the command, however long it takes to settle.
    return _Kind("rate", settles=False) if stops else _Kind(kind, is_certain=stops is not None)


def _gain(curve: tuple[GainPoint, ...], band: DeadBand, direction: float) -> float:
    """The slope from the edge of the dead band to the point of the largest push."""
    mine = [p for p in curve if p.command * direction > 0]
    if not mine or not np.isfinite(band.edge):
        return float("nan")
    top = max(mine, key=lambda p: abs(p.command))
    return top.response / (direction * (abs(top.command) - band.edge))


def _too_short(recording: Recording, spec: ControlSpec, found: ChannelFindings) -> str:
    """What longer pushes would have told."""
    longest = f"Pushes of {recording.push_steps * spec.period_s:.2g} s were too short to see"
    unknown = (
        f"where the speed that {found.name} sets settles: it is a rate, since neutral ends it, but 63 % and gains are "
        "at least what is given here."
        if not found.settles
        else f"whether {found.name} sets a speed or an acceleration."
    )
    longer = recording.push_steps * spec.period_s < max(MAX_PUSH_S, MAX_PUSH_STEPS * spec.period_s)
    return f"{longest} {unknown}" + (" Pushes last a fifth of a trajectory: more `steps` make them longer." * longer)


def _notes(
    recording: Recording, spec: ControlSpec, channels: tuple[ChannelFindings, ...], stands_still: bool
) -> tuple[str, ...]:
    notes = []
    if recording.stopped:
        notes.append(f"Ended before its time: {recording.stopped.removesuffix('.')}.")
    tried = {p.channel for p in recording.pushes}
    for c, found in enumerate(channels):
        if c not in tried:
            notes.append(f"{found.name} was not tried.")
        elif not found.responds:
            largest = max(p.amplitude for p in recording.alone(c))
            notes.append(
                f"{found.name} does not respond: nothing that is measured follows it up to {largest:.2g} of half its "
                "range. Check the channel, or try a larger --amplitude."
            )
        elif any(p.cut for p in recording.alone(c)):
            notes.append(
                f"{found.name} was not pushed beyond {found.amplitude:.2g} of half its range: larger pushes came near "
                "a position limit, went too far, or ended the robot's episode."
            )
        if found.is_contradictory:
            notes.append(
                f"{found.name} seems to reach 63 % after {found.rise_steps:.2g} control periods, before its dead time "
                f"of {found.dead_time_steps} is over: what is measured of {found.moves} is not its response, so no "
                "settings are proposed."
            )
        elif not found.settles or not found.is_certain:
            notes.append(_too_short(recording, spec, found))
    names = spec.layout.measured
    for velocity, followed, own in swapped_velocities(recording, spec):
        notes.append(
            f"{names[velocity]} follows {names[followed]}, not {names[own]}: correct `velocities` in the task."
        )
    if not stands_still:
        notes.append(
            "The robot does not stand still under the neutral command: gains are the acceleration that a command adds, "
            "settling times cannot be told, and noise is what cannot be foreseen one period ahead."
        )
    restarts = int((~recording.joined[1:]).sum())
    if restarts:
        notes.append(f"The robot ended or was stopped at its limits, and was restarted, {restarts} times.")
    fallen = int((~recording.joined[1 : recording.rest]).sum())
    if fallen:
        stood_s = recording.rest / (fallen + 1) * spec.period_s
        unknown = [c.name for c in channels if c.responds and not np.isfinite([c.gain_plus, c.gain_minus]).all()]
        what = f", and the gain of {', '.join(unknown)}" if unknown else ""
        notes.append(
            f"The robot falls or runs away within about {stood_s:.2g} s of the neutral command, so that pushes were "
            f"shorter than that. What could not be measured: where it settles, dead bands{what}."
        )
    return tuple(notes)
