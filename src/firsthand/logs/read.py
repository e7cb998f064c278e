"""Which reader a path needs."""

from pathlib import Path

from firsthand_onboard import ControlSpec

from ..errors import UserError
from ..runs import atomic
from .base import Log
from .csv_file import read_csv
from .episodes import read_run
from .mcap import read_mcap


def read_log(path: Path, spec: ControlSpec) -> Log:
    """A run folder, a `.csv` or an `.mcap` file as the log of a robot with this specification."""
    with atomic.reading(path):
        is_folder = path.is_dir()
        if not path.exists():
            raise UserError(f"{path} does not exist.")
    if is_folder:
        return read_run(path, spec)
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return read_csv(path, spec)
    if suffix == ".mcap":
        return read_mcap(path, spec)
    raise UserError(f"{path} is not a log: it must be a run folder, a .csv or an .mcap file.")
