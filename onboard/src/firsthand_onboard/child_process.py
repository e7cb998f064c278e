"""Starting another Python program of ours."""

from __future__ import annotations

import os
import sys

RUN = "import sys; del sys.path[0]; import runpy; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"


def module_command(module: str) -> list[str]:
    """The command that runs one of our modules. The working folder is not searched for modules, unless it is here.

    With `-m` alone Python looks there first, before its own library: in a folder that somebody else has filled, a file
    `json.py` would be run.
    """
    if {"", os.getcwd()} & set(sys.path):
        return [sys.executable, "-m", module]
    return [sys.executable, "-c", RUN.format(module)]
