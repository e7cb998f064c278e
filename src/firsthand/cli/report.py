"""`firsthand report`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Report:
    """Write the HTML report of a run, or a page that compares several: one file, to be sent to a colleague."""

    run_folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...", help_behavior_hint="")]
    """Folders of the runs."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Path of the page; by default report/index.html, or report/comparison.html, in the folder of the first run."""

    animation: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write a GIF of the robot as it learned, instead of the page."""

    def run(self) -> int:
        """Write the page and print its path."""
        from ..errors import UserError
        from ..report import write_comparison, write_report
        from ..runs import atomic

        if not self.run_folders:
            raise UserError("give the folder of a run: firsthand report RUN.")
        if self.animation is not None:
            from ..report.animation import write_animation

            if len(self.run_folders) > 1:
                raise UserError(f"the animation shows one run, not {len(self.run_folders)}.")
            print(write_animation(next(iter(self.run_folders)), self.animation))
            return 0
        if self.out is not None:
            with atomic.reading(self.out):
                is_folder = self.out.is_dir()
            if is_folder:
                page = self.out / "report.html"
                raise UserError(f"out is {self.out}, which is a folder; name the file: --out {page}.")
        if len(self.run_folders) == 1:
            print(write_report(self.run_folders[0], self.out))
        else:
            print(write_comparison(self.run_folders, self.out))
        return 0
