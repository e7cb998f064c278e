"""`firsthand characterize`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from ..errors import UserError, suggest


@dataclass(frozen=True)
class Characterize:
    """Print a simulated robot's responses beside the facts it was built to."""

    robot: Annotated[Positional[str], arg(metavar="ROBOT", help_behavior_hint="")]
    """excavator (both fidelities), or excavator-pressure, excavator-flow for one of them."""

    def run(self) -> int:
        """Measure and print; exit code 1 when a response is outside its range."""
        known = ("excavator", "excavator-flow", "excavator-pressure")
        if self.robot not in known:
            raise UserError(
                f"There is no robot {self.robot!r} to characterize{suggest(self.robot, known)}; "
                f"known are {', '.join(known)}."
            )
        from rich.console import Console
        from rich.table import Table

        from ..plants.excavator import ExcavatorFlow, ExcavatorPressure
        from ..plants.excavator.characterize import characterize

        plants = {"excavator-flow": ExcavatorFlow, "excavator-pressure": ExcavatorPressure}
        wanted = plants if self.robot == "excavator" else {self.robot: plants[self.robot]}
        console, failed = Console(), 0
        columns = {}
        with console.status("measuring responses …") as status:
            for name, plant in wanted.items():
                status.update(f"measuring responses of {name} (about 20 s) …")
                columns[name] = characterize(plant())
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
        return 1 if failed else 0
