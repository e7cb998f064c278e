"""An inspection as rows of text, for the terminal and the page."""

import math

from .findings import ChannelFindings
from .inspection import Inspection
from .response import DeadBand

UNKNOWN = "–"
STOPPING_NOTE = "How its joints stop, for the class of the machine; check it by hand, from full speed:"
TIMES = ("channel", "sets", "dead time\nsteps", "dead time\ns", "63 %\ns", "settled\ns")
STRENGTH = ("channel", "pushed\nto", "dead band\n−", "dead band\n+", "gain\n−", "gain\n+", "noise\n")


def digits(value: float | None, count: int = 2) -> str:
    """A number with a few digits, a dash for what is not known."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.{count}g}"


def times(inspection: Inspection) -> list[tuple[str, ...]]:
    """How fast each channel responds, under `TIMES`."""
    rows = []
    for channel in inspection.findings.channels:
        dead = channel.dead_time_steps
        if not channel.responds or dead is None:
            rows.append((channel.name, "nothing", *([UNKNOWN] * (len(TIMES) - 2))))
            continue
        rows.append(
            (
                channel.name,
                inspection.unit(channel),
                str(dead),
                f"≤ {inspection.seconds(dead + 1):.2g}",
                ("" if channel.settles else "≥ ") + digits(inspection.seconds(channel.rise_steps)),
                _settling(inspection, channel),
            )
        )
    return rows


def strength(inspection: Inspection) -> list[tuple[str, ...]]:
    """From where on and how strongly each channel acts, under `STRENGTH`."""
    rows = []
    for channel in inspection.findings.channels:
        pushed = digits(channel.amplitude)
        if not channel.responds or channel.quantity is None:
            rows.append((channel.name, pushed, *([UNKNOWN] * (len(STRENGTH) - 2))))
            continue
        rows.append(
            (
                channel.name,
                pushed,
                edge_text(channel.dead_band_minus),
                edge_text(channel.dead_band_plus),
                _gain(channel, -1.0),
                _gain(channel, 1.0),
                digits(float(inspection.findings.noise[channel.quantity.position])),
            )
        )
    return rows


def _settling(inspection: Inspection, channel: ChannelFindings) -> str:
    if channel.kind == "acceleration":
        return UNKNOWN
    if not math.isfinite(channel.settling_steps):
        return f"> {inspection.seconds(0.8 * inspection.recording.push_steps):.2g}"
    return digits(inspection.seconds(channel.settling_steps))


def edge_text(band: DeadBand | None) -> str:
    """Where the dead band ends, as far as that is known."""
    if band is None:
        return UNKNOWN
    return digits(band.edge) if band.is_known else f"≤ {digits(band.responding)}"


def _gain(channel: ChannelFindings, direction: float) -> str:
    """The gain, or in which direction from a number it lies where the dead band or the end of the rise is not known."""
    gain, band = (
        (channel.gain_plus, channel.dead_band_plus) if direction > 0 else (channel.gain_minus, channel.dead_band_minus)
    )
    if not math.isfinite(gain) or band is None:
        return UNKNOWN
    if channel.settles and band.is_known:
        return digits(gain)
    least = gain if band.is_known else channel.least_gain(direction)
    return f"{'≥' if least > 0 else '≤'} {digits(least)}"


def comparison(inspection: Inspection) -> list[tuple[str, str, str]]:
    """(field, now, proposed) for every field that is proposed."""
    if inspection.proposal is None:
        return []
    return [
        (field, _format(now), _format(getattr(inspection.proposal, field))) for field, now in inspection.now().items()
    ]


def _format(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{v:.3g}" for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
