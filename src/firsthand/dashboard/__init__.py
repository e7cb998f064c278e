"""The live page: watch a run learn, and control it. Needs the extra `firsthand[dashboard]`."""

from importlib.util import find_spec

from ..errors import UserError, how_to_install


def check_installed() -> None:
    """Say what is missing before anything is started."""
    try:
        missing = find_spec("nicegui") is None
    except ModuleNotFoundError:
        missing = True
    if missing:
        raise UserError(f"the live page needs NiceGUI; install it with: {how_to_install('dashboard')}")
