"""The configuration of a training run, as data: enough to repeat it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..agent import Settings
from ..errors import UserError
from .origin import BaseOrigin, InitFrom, TakenLog
from .presets import EPISODES, preset

MAX_EPISODES = 100_000
"""Two months of robot time; more is a slip of the finger, and its data would not fit into memory."""


@dataclass(frozen=True)
class TrainingConfig:
    """A run: which robot, which learner, how long, which seed."""

    robot: str
    """The robot's name. Only text: who needs the robot finds it with `robots.registry.find_robot`."""
    preset: str
    """The preset's name."""
    settings: Settings
    """The agent's settings, after the user's changes to the preset."""
    episodes: int
    """Episodes in all."""
    seed: int = 0
    """Seed of everything random."""
    payload_kg: float = 0.0
    """Load at the tool, for robots that can carry one."""
    sensors: str | None = None
    """The sensors that a built-in robot is seen through, by name; None for its own."""
    init_from: InitFrom | None = None
    """The run whose model, policy or both this one begins with."""
    data: tuple[TakenLog, ...] = ()
    """Logs that are in the buffer before the first episode."""
    base: BaseOrigin | None = None
    """The controller that the policy is learned on top of."""

    def __post_init__(self) -> None:
        if not 1 <= self.episodes <= MAX_EPISODES:
            raise UserError(f"episodes is {self.episodes}, but must lie between 1 and {MAX_EPISODES}.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed is {self.seed}, but must lie between 0 and {2**32 - 1}.")
        if not 0 <= self.payload_kg <= 2000:
            raise UserError(f"payload is {self.payload_kg} kg, but must lie between 0 and 2000.")

    @staticmethod
    def of(
        robot: str,
        preset_name: str = "fast",
        *,
        episodes: int | None = None,
        seed: int = 0,
        payload_kg: float = 0.0,
        sensors: str | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> "TrainingConfig":
        """A preset for a robot, with changes to its settings, such as `{"model.steps": 300}`."""
        return TrainingConfig(
            robot=robot,
            preset=preset_name,
            settings=preset(preset_name).with_changes(changes or {}),
            episodes=EPISODES[preset_name] if episodes is None else episodes,
            seed=seed,
            payload_kg=payload_kg,
            sensors=sensors,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for config.json."""
        data = dataclasses.asdict(self)
        return {name: value for name, value in data.items() if name not in ("init_from", "data", "base") or value}

    @staticmethod
    def from_dict(data: dict[str, Any], where: str = "config.json") -> "TrainingConfig":
        """The configuration that `as_dict` wrote; `where` names the file if it cannot be read."""
        if "recording" in data:
            raise UserError(f"{Path(where).parent} is a recording, not a training run: it has no policy.")
        if "settings" not in data and "hyper" in data:
            raise UserError(
                f"{where} was written by an earlier version of firsthand, whose settings had no groups; open the run "
                "with the version that its provenance names."
            )
        try:
            separate = ("settings", "init_from", "data", "base")
            fields = {f.name: data[f.name] for f in dataclasses.fields(TrainingConfig) if f.name not in separate}
            if not isinstance(fields["robot"], str):
                raise UserError(f"robot is {fields['robot']!r}, but must be text")
            fields["init_from"] = InitFrom(**data["init_from"]) if data.get("init_from") else None
            fields["data"] = tuple(TakenLog(**log) for log in data.get("data", ()))
            fields["base"] = BaseOrigin(**data["base"]) if data.get("base") else None
            return TrainingConfig(settings=Settings.from_dict(data["settings"]), **fields)
        except KeyError as error:
            why = f"the field {error} is missing"
        except (TypeError, ValueError, UserError) as error:
            why = str(error).removesuffix(".")
        raise UserError(f"{where} is damaged or was written by another version of firsthand: {why}.")
