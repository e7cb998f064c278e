"""What a run's configuration tells the page."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firsthand_onboard import ControlSpec

from ..control.machine import address_of
from ..errors import UserError
from ..robots.description import RobotDescription
from ..units import Score, Unit, unit_of


@dataclass(frozen=True)
class RunInfo:
    """The part of a run's configuration that the page shows."""

    robot: str
    preset: str
    seed: int
    episodes: int
    payload: str
    unit: Unit
    score: Score
    """The number that policies are judged by."""
    spec: ControlSpec
    step_bound: float
    """η/(2√ε), which no policy step exceeds."""
    address: str | None
    """Where its machine is, if it has one."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "RunInfo":
        """Read the `config` of config.json; `UserError` when this version cannot read it."""
        if "recording" in config:
            raise UserError("this is a recording, not a training run: there is no learning to watch.")
        try:
            step, description = config["settings"]["policy_step"], RobotDescription.of_config(config)
            payload = float(config.get("payload_kg", 0.0))
            return cls(
                robot=str(config["robot"]),
                preset=str(config["preset"]),
                seed=int(config["seed"]),
                episodes=int(config["episodes"]),
                payload=f"{payload:g} kg" if payload else "",
                unit=unit_of(description.unit),
                score=description.score,
                spec=description.spec,
                step_bound=float(step["eta"]) / (2 * math.sqrt(float(step["epsilon"]))),
                address=address_of(str(config["robot"])),
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise UserError(f"config.json was written by another version of firsthand ({error!r}).") from None
