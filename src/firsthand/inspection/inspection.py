"""An inspection as a whole: recording, findings and proposals."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec

from ..robots.base import operating_point
from .findings import ChannelFindings, Findings, identify
from .proposals import Proposal, propose, rate_notes
from .recording import Recording
from .response import DeadBand
from .settings import InspectionSettings
from .stopping import measure_stopping

FORMAT = 1
PER = {"position": "", "rate": " per s", "acceleration": " per s²"}
"""What follows the name of a position in the unit of a response."""


@dataclass(frozen=True)
class Inspection:
    """Everything that `firsthand inspect` shows and writes."""

    robot: str
    """As it was named on the command line."""
    spec: ControlSpec
    """As the task has it now."""
    settings: InspectionSettings
    recording: Recording
    findings: Findings
    proposal: Proposal | None
    """None when no channel responds, or one contradicts itself."""
    stopping: dict[str, list[Any]] | None = None
    """How the positions stop, as a machine declares it (`stopping`); None where that cannot be told."""
    file: tuple[str, str] | None = None
    """Name of the user's file that has a `GymnasiumTask`, and what it is called there; None for other robots."""

    @property
    def advice(self) -> tuple[str, str] | None:
        """What is proposed as Python, and where it belongs; None where nothing is proposed."""
        if self.proposal is None:
            return None
        if self.file is None:
            return "Fields of the task (from firsthand_onboard import Scales):", self.proposal.snippet(self.spec)
        name, attribute = self.file
        return f"To paste at the end of {name}:", self.proposal.paste(self.spec, attribute)

    @property
    def robot_time_s(self) -> float:
        """How long the robot was moved."""
        return len(self.recording) * self.spec.period_s

    def seconds(self, steps: float | None) -> float:
        """Control periods as seconds; NaN for what is not known."""
        return float("nan") if steps is None else steps * self.spec.period_s

    def as_dict(self) -> dict[str, Any]:
        """For `inspection.json`; what is not known is null."""
        spec, found = self.spec, self.findings
        names, effects = spec.layout.measured, found.coupling
        return {
            "format": FORMAT,
            "robot": self.robot,
            "period_s": spec.period_s,
            "robot_time_s": self.robot_time_s,
            "settings": asdict(self.settings),
            "ended_early": self.recording.stopped or None,
            "stands_still": found.stands_still,
            "noise": dict(zip(names, found.noise.tolist(), strict=True)),
            "drift_per_s": dict(zip(names, found.drift.tolist(), strict=True)),
            "channels": [self._channel(i, channel) for i, channel in enumerate(found.channels)],
            "coupling": {
                "after_s": self.seconds(effects.steps),
                "measured": list(names),
                "commands": list(spec.layout.commands),
                "push": [c.amplitude * self.half_range(i) for i, c in enumerate(found.channels)],
                "alone": effects.alone,
                "together": effects.together,
                "clear": effects.clear,
            },
            "proposal": None if self.proposal is None else {**asdict(self.proposal), "now": self.now()},
            "stopping": self.stopping,
            "notes": list(found.notes),
        }

    def now(self) -> dict[str, Any]:
        """What the task has for each field that is proposed."""
        spec = self.spec
        return {
            "period_s": spec.period_s,
            "command_memory": spec.layout.command_memory,
            "preview": spec.preview,
            "measured_center": spec.scales.measured_center,
            "measured_scale": spec.scales.measured_scale,
            "change_scale": spec.scales.change_scale,
        }

    def half_range(self, channel: int) -> float:
        """Half of a channel's command range."""
        return (self.spec.limits.command_high[channel] - self.spec.limits.command_low[channel]) / 2

    def unit(self, channel: ChannelFindings) -> str:
        """Unit of a channel's long-run response."""
        return f"{channel.moves}{PER[channel.kind]}" if channel.kind else ""

    def _channel(self, index: int, channel: ChannelFindings) -> dict[str, Any]:
        dead = channel.dead_time_steps
        found: dict[str, Any] = {
            "name": channel.name,
            "responds": channel.responds,
            "amplitude": channel.amplitude,
            "neutral": float(operating_point(self.spec)[index]),
            "half_range": self.half_range(index),
        }
        if not channel.responds:
            return found
        assert channel.response is not None
        response = {name: np.asarray(getattr(channel.response, name)) for name in channel.response.__dataclass_fields__}
        return {
            **found,
            "moves": channel.moves,
            "kind": channel.kind,
            "response_unit": self.unit(channel),
            "dead_time_steps": dead,
            "dead_time_s": {
                "seen_after": self.seconds(dead),
                "at_most": self.seconds(None if dead is None else dead + 1),
            },
            "rise_time_s": self.seconds(channel.rise_steps),
            "lag_s": self.seconds(channel.lag_steps),
            "settling_time_s": self.seconds(channel.settling_steps),
            "settles": channel.settles,
            "gain": {
                "minus": _if_known(channel.gain_minus, channel.dead_band_minus),
                "plus": _if_known(channel.gain_plus, channel.dead_band_plus),
            },
            "dead_band": {
                "minus": _as_dict(channel.dead_band_minus),
                "plus": _as_dict(channel.dead_band_plus),
            },
            "static_gain": {
                "command_from_neutral": [p.command for p in channel.curve],
                "response": [p.response for p in channel.curve],
                "standard_error": [p.standard_error for p in channel.curve],
                "pushes": [p.pushes for p in channel.curve],
            },
            "step_response": response,
        }


def _if_known(value: float, band: DeadBand | None) -> float:
    return value if band is None or band.is_known else float("nan")


def _as_dict(band: DeadBand | None) -> dict[str, float] | None:
    """An edge that is only guessed is left out."""
    if band is None:
        return None
    return {"edge": _if_known(band.edge, band), "silent": band.silent, "responding": band.responding}


def conclude(robot: str, spec: ControlSpec, settings: InspectionSettings, recording: Recording) -> Inspection:
    """Findings and proposals from a recording."""
    findings = identify(recording, spec)
    findings = replace(findings, notes=findings.notes + rate_notes(findings, recording, spec))
    stopping = measure_stopping(recording, findings, spec)
    return Inspection(robot, spec, settings, recording, findings, propose(findings, recording, spec), stopping)
