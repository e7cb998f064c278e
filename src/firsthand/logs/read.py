"""Which reader a path needs."""

from pathlib import Path

from firsthand_onboard import ControlSpec

from ..errors import UserError
from .base import Log
from .comma import read_csv
from .episodes import read_run
from .mcap import read_mcap


def read_log(path: Path, spec: ControlSpec) -> Log:
    """A run folder, a `.csv` or an `.mcap` file as the log of a robot with this specification."""
    if path.is_dir():
        return read_run(path, spec)
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return read_csv(path, spec)
    if suffix == ".mcap":
        return read_mcap(path, spec)
    raise UserError(f"{path} is no log: it must be a run folder, a .csv or an .mcap file.")
