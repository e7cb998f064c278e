"""Where things are kept between runs: what can be made again, and what the user has decided."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Compiled programs and oracles: $XDG_CACHE_HOME/firsthand, by default ~/.cache/firsthand."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    return (Path(chosen) if chosen else Path(os.path.expanduser("~")) / ".cache") / "firsthand"


def state_folder() -> Path:
    """What this user has decided, across runs: $XDG_STATE_HOME/firsthand, by default ~/.local/state/firsthand."""
    chosen = os.environ.get("XDG_STATE_HOME")
    return (Path(chosen) if chosen else Path(os.path.expanduser("~")) / ".local" / "state") / "firsthand"
