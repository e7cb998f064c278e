"""`firsthand report`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Report:
    """Write the HTML report of a run."""

    run_folder: Annotated[Positional[Path], arg(metavar="RUN", help_behavior_hint="")]
    """Folder of the run."""

    def run(self) -> int:
        """Write it and say where it is."""
        from ..report import write_report

        print(write_report(self.run_folder))
        return 0
