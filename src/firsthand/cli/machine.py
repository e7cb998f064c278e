"""`firsthand machine`."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from ..errors import UserError
from .simulator import HEAVIEST_KG


@dataclass(frozen=True)
class Machine:
    """Play the machine: a simulated robot in a process of its own, for firsthand-onboard to control."""

    robot: Annotated[Positional[str], arg(metavar="ROBOT")]
    """The simulated robot: excavator, excavator-pressure, excavator-realistic."""
    listen: str = "127.0.0.1:9870"
    """UDP host:port; port 0 is any free one."""
    speed: float = 1.0
    """Faster than real time."""
    lock_step: bool = False
    """Time passes only when a command comes."""
    timeout: float = 0.08
    """The machine's own command timeout in seconds."""
    payload: float = 0.0
    """Load at the tool in kg."""
    seed: int = 0
    """Seed of what is random in it."""
    vary: float = 0.0
    """Another machine of the kind: valves, pump and pressures differ by this share, up or down as --seed decides."""
    log: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """A line of JSON for everything that happens."""
    spec: bool = False
    """Print the robot's control specification as JSON, and nothing else."""

    def run(self) -> int:
        """Until the process is ended."""
        from firsthand_onboard.cli import run_plant
        from firsthand_onboard.spec import SpecError

        from ..robots.registry import find_robot
        from ..robots.simulated_machine import plant_of

        found = find_robot(self.robot, approve=True)
        if self.spec:
            print(found.task.spec.to_json())
            return 0
        for name in ("speed", "timeout"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}, but must be a positive number.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed is {self.seed}, but must lie between 0 and {2**32 - 1}.")
        if not 0 <= self.vary <= 0.2:
            raise UserError(f"vary is {self.vary}, but must lie between 0 and 0.2.")
        if not 0 <= self.payload <= HEAVIEST_KG:  # NaN is not inside either
            raise UserError(f"payload is {self.payload} kg, but must lie between 0 and {HEAVIEST_KG:.0f}.")
        try:
            return run_plant(
                plant_of(found, payload_kg=self.payload, seed=self.seed, vary=self.vary), Namespace(**vars(self))
            )
        except SpecError as error:
            raise UserError(f"{error}.") from None
