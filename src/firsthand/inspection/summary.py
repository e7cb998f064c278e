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
                digits(inspection.seconds(channel.rise_steps)),
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
                _edge(channel.dead_band_minus),
                _edge(channel.dead_band_plus),
                digits(channel.gain_minus),
                digits(channel.gain_plus),
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


def _edge(band: DeadBand | None) -> str:
    return UNKNOWN if band is None else digits(band.edge)


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
