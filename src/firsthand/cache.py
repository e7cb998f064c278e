"""Where things that can be made again are kept between runs."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Compiled programs and oracles: $XDG_CACHE_HOME/firsthand, by default ~/.cache/firsthand."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    return (Path(chosen) if chosen else Path(os.path.expanduser("~")) / ".cache") / "firsthand"
