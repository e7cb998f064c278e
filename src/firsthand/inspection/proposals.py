"""Settings for a robot's task, from what an inspection found."""

import math
from dataclasses import dataclass

import numpy as np

from firsthand_onboard import ControlSpec, SelectedOutput

from .findings import ChannelFindings, Findings
from .recording import Recording

MIN_RISE_STEPS, MAX_RISE_STEPS = 4.0, 15.0
"""Control periods that the quickest channel's rise should span."""
TARGET_RISE_STEPS = 8.0
MAX_OFFSETS = 8
MAX_PREVIEW = 40
TOO_FAST = 2.0
"""References that are this many times as fast as the robot at full command are not meant."""


@dataclass(frozen=True)
class Proposal:
    """Values for fields of the task, with reasons."""

    period_s: float
    """A longer one is what the other fields are counted in; a shorter one is advice: they keep to today's."""
    command_memory: int
    preview: tuple[int, ...]
    measured_center: tuple[float, ...]
    measured_scale: tuple[float, ...]
    change_scale: tuple[float, ...]
    reasons: dict[str, str]
    """One sentence per field."""

    def paste(self, spec: ControlSpec, attribute: str) -> str:
        """Python to paste at the end of the user's file: the task that is `attribute` there, with these fields."""
        fields = "\n".join(f"    {line}" for line in self.snippet(spec).splitlines())
        return (
            "from dataclasses import replace\n\nfrom firsthand_onboard import Scales\n\n"
            f"{attribute.removesuffix('()')} = replace(\n    {attribute},\n{fields}\n)"
        )

    def snippet(self, spec: ControlSpec) -> str:
        """The fields alone."""
        scales = spec.scales
        period = f"period_s={self.period_s:g},"
        # The field only tells how long a step of the robot takes.
        if self.period_s < spec.period_s:
            period = f"# period_s={self.period_s:g} would be better: inspect again at that rate. For {spec.period_s:g}:"
        elif self.period_s > spec.period_s:
            period = f"# {period} change the environment's dt first; what follows is counted in this period"
        return "\n".join(
            (
                period,
                f"command_memory={self.command_memory},",
                f"preview={self.preview!r},",
                "scales=Scales(",
                f"    measured_center={_numbers(self.measured_center)},",
                f"    measured_scale={_numbers(self.measured_scale)},",
                f"    change_scale={_numbers(self.change_scale)},",
                f"    error={_one_or_more(scales.error)},  # as it is: depends on the task, not on the robot",
                f"    preview={_one_or_more(scales.preview)},  # as it is",
                "),",
            )
        )


def propose(findings: Findings, recording: Recording, spec: ControlSpec) -> Proposal | None:
    """Control period, command memory, preview and scales; None when no channel responds, or one contradicts itself."""
    responding = [c for c in findings.channels if c.responds and math.isfinite(c.rise_steps)]
    if not responding or any(c.is_contradictory for c in responding):
        return None
    period, why_period = _period(responding, spec)
    # Control periods that the proposal counts in, per control period now; a shorter one is only advice.
    per = min(spec.period_s / period, 1.0)
    slowest = max(responding, key=lambda c: c.rise_steps)
    acts = max(slowest.rise_steps, *((c.dead_time_steps or 0) + 1 for c in responding))
    memory = max(math.ceil(acts * per - 1e-6), 1)
    last, why_preview = _preview(responding, slowest, spec, per, findings.tracked_delay_steps)
    count = min(MAX_OFFSETS, last)
    offsets = tuple(sorted({round(last * (i + 1) / count) for i in range(count)}))
    center, scale, change = _scales(findings, recording, spec, 1 / per)
    reasons = {
        "period_s": why_period,
        "command_memory": (
            f"{slowest.name} is the slowest: dead time {slowest.dead_time_steps} and lag "
            f"{max(slowest.lag_steps, 0.0):.1f} "
            f"control periods of {spec.period_s:g} s, so the last {memory} commands still act on what comes next."
        ),
        "preview": why_preview,
        "scales": (
            "Positions by their limits, other tracked outputs as the task has them; rates by the largest seen, and "
            "changes by the 95 % quantile of the change in one period, both scaled up from the pushes to the full "
            "command."
        ),
    }
    return Proposal(period, memory, offsets, center, scale, change, reasons)


def _period(responding: list[ChannelFindings], spec: ControlSpec) -> tuple[float, str]:
    settling = [c for c in responding if c.kind != "acceleration"]
    now = spec.period_s
    if not settling:
        return now, f"Kept at {now:g} s: the commands set accelerations, whose responses have no rise time to go by."
    quickest = min(settling, key=lambda c: c.rise_steps)
    spans = f"{quickest.name}, the quickest, reaches 63 % after {quickest.rise_steps * now:.2g} s"
    if quickest.rise_steps < MIN_RISE_STEPS:
        wanted = _round(max(quickest.rise_steps * now / TARGET_RISE_STEPS, now / 4))
        return wanted, (
            f"{spans}, only {quickest.rise_steps:.1f} control periods; with {wanted:g} s a controller could act while "
            f"it responds (inspect again at that rate). Otherwise keep {now:g} s."
        )
    if quickest.rise_steps > MAX_RISE_STEPS:
        wanted = _round(quickest.rise_steps * now / TARGET_RISE_STEPS)
        return wanted, (
            f"{spans}, {quickest.rise_steps:.0f} control periods; with {wanted:g} s it is {TARGET_RISE_STEPS:.0f}: "
            "each command then has an effect that can be measured, and the state needs fewer past commands."
        )
    return now, f"Kept at {now:g} s: {spans}, {quickest.rise_steps:.1f} control periods; 4 to 15 are good."


def _preview(
    responding: list[ChannelFindings], slowest: ChannelFindings, spec: ControlSpec, per: float, late: float | None
) -> tuple[int, str]:
    forces = [c for c in responding if c.kind == "acceleration"]
    last = math.ceil(1.5 * slowest.rise_steps * per)
    why = (
        f"1.5 times what {slowest.name} needs to reach 63 % ({slowest.rise_steps * spec.period_s:.2g} s): what is "
        "commanded now shows only then."
    )
    if late is not None and late > slowest.rise_steps:
        last = math.ceil(1.5 * late * per)
        why = f"1.5 times the time by which what is tracked is late ({late * spec.period_s:.2g} s)."
    elif late is not None and math.isnan(late) and spec.preview[-1] * per > last:
        last = math.ceil(spec.preview[-1] * per)
        why = "As far as it is: the pushes do not show clearly how late what is tracked follows."
    for channel in forces:
        travel = _travel_steps(channel, spec) * per
        if travel > last:
            last = math.ceil(travel)
            why = f"{channel.name} at full command needs this long for a tenth of the range of {channel.moves}."
    return min(max(last, 2), MAX_PREVIEW), why


def _travel_steps(channel: ChannelFindings, spec: ControlSpec) -> float:
    """Periods that an acceleration at full command takes over a tenth of the range, dead time included."""
    assert channel.quantity is not None
    i = spec.layout.position.index(channel.quantity.position)
    c = spec.layout.commands.index(channel.name)
    extent = spec.limits.position_high[i] - spec.limits.position_low[i]
    half = (spec.limits.command_high[c] - spec.limits.command_low[c]) / 2
    gains = [abs(g) for g in (channel.gain_plus, channel.gain_minus) if math.isfinite(g) and g != 0]
    if not gains:
        return 0.0
    return (channel.dead_time_steps or 0) + math.sqrt(2 * 0.1 * extent / (min(gains) * half)) / spec.period_s


def _scales(
    findings: Findings, recording: Recording, spec: ControlSpec, longer: float
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    layout, limits = spec.layout, spec.limits
    known = np.isfinite(recording.change).all(axis=1)
    measured = recording.after[known]
    full, steps = _full_command(findings, recording, spec)
    center = (measured.max(axis=0) + measured.min(axis=0)) / 2
    scale = (measured.max(axis=0) - measured.min(axis=0)) / 2
    if isinstance(spec.kinematics, SelectedOutput):  # as the task has them: from its goals
        tracked = list(spec.kinematics.indices)
        center[tracked], scale[tracked] = (
            np.asarray(scales)[tracked] for scales in (spec.scales.measured_center, spec.scales.measured_scale)
        )
    for i, entry in enumerate(layout.position):
        low, high = limits.position_low[i], limits.position_high[i]
        center[entry], scale[entry] = (low + high) / 2, (high - low) / 2
        if layout.velocity:
            velocity = layout.velocity[i]
            center[velocity] = 0.0
            scale[velocity] = full[velocity] * np.max(np.abs(measured[:, velocity]))
    steps[list(layout.position)] *= longer
    usable = scale > 1e-9
    scale = np.where(usable, scale, spec.scales.measured_scale)
    steps = np.where(steps > 1e-9, steps, spec.scales.change_scale)
    rounded = (tuple(_round(float(v), 3) for v in values) for values in (center, scale, steps))
    first, second, third = rounded
    return first, second, third


def _full_command(findings: Findings, recording: Recording, spec: ControlSpec) -> tuple[np.ndarray, np.ndarray]:
    """Per entry: the full command over the push that moves it most, and how far that would move it in one period."""
    change = recording.change
    known = np.isfinite(change).all(axis=1)
    change = change[known]
    pushed = np.zeros(len(recording), bool)
    amplitudes = np.asarray([c.amplitude for c in findings.channels])
    for push in recording.pushes:
        if push.channel >= 0 and push.amplitude >= 0.99 * amplitudes[push.channel]:
            pushed[push.start : push.start + push.steps] = True
    moving = change[pushed[known]] if pushed[known].any() else change
    # From the push that moves a quantity most to the full command; what moves by itself is not scaled.
    full = np.ones(spec.layout.num_measured)
    if findings.stands_still:
        most = np.argmax(np.nan_to_num(np.abs(findings.coupling.alone)), axis=1)
        full = 1 / np.maximum(amplitudes[most], 1e-9)
    return full, full * np.quantile(np.abs(moving), 0.95, axis=0)


def rate_notes(findings: Findings, recording: Recording, spec: ControlSpec) -> tuple[str, ...]:
    """Where the task asks for references that are faster than the full command moves what is tracked."""
    settling = [c.kind != "acceleration" for c in findings.channels if c.responds]
    if not findings.stands_still or not settling or not all(settling):
        return ()
    if spec.reference.space == "position":
        entries = spec.layout.position
    elif isinstance(spec.kinematics, SelectedOutput):
        entries = spec.kinematics.indices
    else:
        return ()
    fastest = _full_command(findings, recording, spec)[1] / spec.period_s
    notes = []
    for entry, low, high in zip(entries, spec.reference.rate_low, spec.reference.rate_high, strict=True):
        rate = max(-low, high)
        if findings.coupling.clear[entry].any() and rate > TOO_FAST * fastest[entry]:
            name = spec.layout.measured[entry]
            notes.append(
                f"The task asks for {rate:g} per s of {name} (`rate`), but the full command moves it by about "
                f"{fastest[entry]:.2g} per s: check `rate` and its unit."
            )
    return tuple(notes)


def _round(value: float, digits: int = 2) -> float:
    return float(f"{value:.{digits}g}")


def _one_or_more(scale: float | tuple[float, ...]) -> str:
    return _numbers(scale) if isinstance(scale, tuple) else f"{scale:g}"


def _numbers(values: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{v:g}" for v in values) + ("," if len(values) == 1 else "") + ")"
