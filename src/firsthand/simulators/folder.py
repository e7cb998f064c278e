"""Writes a learned simulator into its folder; `robots.stored_simulator` reads it."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..plants.learned import LearnedPlant
from ..robots.description import ROBOT_DESCRIPTION, RobotDescription
from ..robots.logged_robot import LoggedRobot
from ..robots.stored_simulator import DESCRIPTION, FORMAT, WEIGHTS, plant_arrays
from ..robots.user_file import simulator_file
from ..runs import atomic, packed, provenance
from .accuracy import Accuracy
from .fit import FitSettings


def check_free(path: Path) -> None:
    """Refuse a place where a new simulator would mix with something else."""
    leftover = (WEIGHTS,)  # of a process that was killed before it wrote the description
    with atomic.reading(path):
        if path.is_file():
            raise UserError(f"{path} is a file; give another --out.")
        if simulator_file(str(path)):
            raise UserError(f"{path} already holds a simulator; give another --out.")
        if path.is_dir() and any(e.name not in leftover and not atomic.is_temporary(e.name) for e in path.iterdir()):
            raise UserError(f"{path} is not empty and holds no simulator; give another --out.")
        there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"cannot write into {there}; give another --out.")


def save(
    path: Path,
    plant: LearnedPlant,
    *,
    robot: str,
    description: RobotDescription,
    data: Sequence[Mapping[str, Any]],
    settings: FitSettings,
    accuracy: Mapping[str, Sequence[Accuracy]],
    logged_robot: LoggedRobot | None = None,
) -> None:
    """Write a simulator to a new folder; the description last, because it is what makes the folder a simulator.

    `accuracy` has an entry `held out`, and one per log that was only judged. `logged_robot` goes into the folder for a
    robot that is known by its description only.
    """
    check_free(path)
    weights = packed.pack(plant_arrays(plant), {})
    atomic.make_folder(path)
    atomic.remove_temporary_files(path)
    atomic.write_bytes(path / WEIGHTS, weights)
    content = {
        "format": FORMAT,
        "robot": robot,
        ROBOT_DESCRIPTION: description.as_dict(),
        "logged_robot": None if logged_robot is None else logged_robot.as_dict(),
        "layers": len(plant.networks.layers),
        "command_history": plant.command_history,
        "observed_steps": plant.observed_steps,
        "free": list(plant.free),
        "beyond": plant.beyond,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "settings": asdict(settings),
        "data": list(data),
        "accuracy": {kind: [one.as_dict() for one in judged] for kind, judged in accuracy.items()},
        "provenance": provenance.collect(),
    }
    atomic.write_json(path / DESCRIPTION, content)
