"""`firsthand characterize`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from ..errors import UserError, suggest

if TYPE_CHECKING:
    from ..plants.excavator.characterize import Row


@dataclass(frozen=True)
class Characterize:
    """Print a simulated robot's responses beside the facts it was built to."""

    robot: Annotated[Positional[str], arg(metavar="ROBOT", help_behavior_hint="")]
    """excavator (all fidelities side by side), excavator-flow, excavator-pressure or excavator-realistic for one of
    them, or soft-arm."""
    plots: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """For excavator-realistic: draw pressures, flows and power of three motions into this PNG file."""

    def run(self) -> int:
        """Measure and print; exit code 1 when a response is outside its range."""
        known = ("excavator", "excavator-flow", "excavator-pressure", "excavator-realistic", "soft-arm")
        if self.robot not in known:
            raise UserError(
                f"There is no robot {self.robot!r} to characterize{suggest(self.robot, known)}; "
                f"known are {', '.join(known)}."
            )
        if self.plots is not None and self.robot != "excavator-realistic":
            raise UserError(f"plots are of pressures, flows and power: for excavator-realistic, not for {self.robot}.")
        from rich.console import Console
        from rich.table import Table

        console, failed = Console(), 0
        columns = {}
        with console.status("measuring responses …") as status:
            for name, measure in _measurements(self.robot).items():
                status.update(f"measuring responses of {name} (about 20 s) …")
                columns[name] = measure()
        table = Table(title="Responses beside the facts (S: read in a source, M: measured on a model, E: estimate)")
        for heading in ("response", "unit", "fact", "source"):
            table.add_column(heading)
        for name in columns:
            table.add_column(name.removeprefix("excavator-"), justify="right")
        for rows in zip(*columns.values(), strict=True):
            first = rows[0]
            cells = []
            for row in rows:
                failed += not row.ok
                cells.append(f"{row.measured:.3g}" if row.ok else f"[red]{row.measured:.3g} ✗[/red]")
            table.add_row(first.name, first.unit, f"{first.low:.3g} … {first.high:.3g}", first.source, *cells)
        console.print(table)
        console.print(f"{failed} outside its range" if failed else "all inside their ranges")
        if self.plots is not None:
            from ..plants.excavator.plots import draw_hydraulics

            draw_hydraulics(self.plots)
            console.print(f"pressures, flows and power: {self.plots}")
        return 1 if failed else 0


def _measurements(robot: str) -> "dict[str, Callable[[], list[Row]]]":
    """What measures the responses of each plant that `robot` means."""
    if robot == "soft-arm":
        from ..plants.soft_arm import ArmEffects, SoftArm
        from ..plants.soft_arm.characterize import characterize as characterize_soft_arm

        return {robot: lambda: characterize_soft_arm(SoftArm(effects=ArmEffects()))}
    from ..plants.excavator import ExcavatorFlow, ExcavatorPressure, ExcavatorRealistic
    from ..plants.excavator.characterize import characterize
    from ..plants.excavator.characterize_effects import effect_rows

    def realistic(*, alone: bool) -> "list[Row]":
        # The facts are means, of a machine at work: no fluctuation of flows, and oil at its working temperature.
        plant = ExcavatorRealistic().at_work()
        return [*characterize(plant.without("noise")), *(effect_rows(plant) if alone else ())]

    plants = {
        "excavator-flow": lambda: characterize(ExcavatorFlow()),
        "excavator-pressure": lambda: characterize(ExcavatorPressure()),
        "excavator-realistic": lambda: realistic(alone=robot != "excavator"),
    }
    return plants if robot == "excavator" else {robot: plants[robot]}
