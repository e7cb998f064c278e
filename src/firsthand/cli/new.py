"""`firsthand new`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from ..errors import UserError

_File = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
_Name = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]


@dataclass(frozen=True)
class New:
    """Write a commented starting file for a robot, from a URDF or MJCF file, a Gymnasium id, or the header of a log."""

    file: Annotated[Positional[Path], arg(metavar="my_robot.py", help_behavior_hint="")]
    """The file to write; an existing file is never replaced."""
    urdf: _File = None
    """A URDF or MJCF file: the tip of its arm shall follow references. Needs --tip."""
    tip: _Name = None
    """With --urdf: the link (of MJCF: the body or site) that shall follow references."""
    base: _Name = None
    """With --urdf: the link in whose frame it is tracked; by default the root."""
    gymnasium: Annotated[str | None, arg(metavar="ID", help_behavior_hint="")] = None
    """A Gymnasium environment by its id, Pendulum-v1 for example, or crane:Crane-v0 for one that crane.py registers.
    It is made and reset once."""
    csv: _File = None
    """A log with a header: names, ranges and control period are taken from it."""
    commands: Annotated[tuple[str, ...], arg(metavar="NAME...", help_behavior_hint="")] = ()
    """With --csv: the columns that are commands, where their names do not say so."""

    def run(self) -> int:
        """Read, write, and print the next step."""
        given = [f"--{name}" for name in ("urdf", "gymnasium", "csv") if getattr(self, name) is not None]
        if len(given) != 1:
            what = f"{' and '.join(given)} were given" if given else "nothing to start from was given"
            raise UserError(f"{what}; give one of --urdf FILE --tip LINK, --gymnasium ID, --csv LOG.csv.")
        for name, of in (("tip", "urdf"), ("base", "urdf"), ("commands", "csv")):
            if getattr(self, name) and getattr(self, of) is None:
                raise UserError(f"--{name} belongs to --{of}; leave it out.")
        if self.file.suffix != ".py":
            raise UserError(f"the file to write is {self.file}, but its name must end in .py.")
        if self.file.exists() or self.file.is_symlink():
            raise UserError(f"{self.file} is there already and is not replaced; give another name, or remove it.")
        text = self._text()
        compile(text, str(self.file), "exec")
        from ..runs import atomic

        atomic.make_folder(self.file.absolute().parent)
        atomic.write_text(self.file, text)
        marked = sum("EDIT" in line for line in text.splitlines())
        print(f"Written: {self.file}. It runs as it is; {marked - 1} places marked EDIT are yours to look at.")
        print(f"Next: firsthand check {self.file}:task")
        return 0

    def _text(self) -> str:
        from ..robots import starting_file

        if self.urdf is not None:
            return starting_file.arm_text(str(self.file), self.urdf, tip=self.tip, base=self.base)
        if self.gymnasium is not None:
            return starting_file.gymnasium_text(str(self.file), self.gymnasium)
        assert self.csv is not None
        return starting_file.log_text(str(self.file), self.csv, commands=self.commands)
