"""`firsthand report`."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class Report:
    """Write the HTML report of a run."""

    run_folder: Positional[Path]
    """Folder of the run."""

    def run(self) -> int:
        """Write it and say where it is."""
        from ..report import write_report

        print(write_report(self.run_folder))
        return 0
