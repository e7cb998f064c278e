"""Our own run folders as logs: the episodes of a training run, or of a recording."""

import dataclasses
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import next_state
from firsthand_onboard.signals import OUT_OF_RANGE, SPIKE, STUCK, find_row_faults, find_spikes, find_stuck_sensors

from ..errors import UserError
from ..robots.base import EpisodeRecord
from ..robots.description import RobotDescription, spec_difference
from ..runs import RunFolder, atomic
from .base import Log, Series

SAME_QUANTITIES = ("period_s", "layout.measured", "layout.commands", "layout.position", "layout.velocity")
"""Fields in which two robots must agree for a log of one to be used for the other."""
COMMAND_RATIO = 3.0
"""A command range that differs from today's by more than this factor is in another unit."""
DID_NOT_HAPPEN = "the step did not happen: its trajectory was cut"


def stored_spec(folder: RunFolder) -> ControlSpec:
    """The control specification with which a run was made."""
    return RobotDescription.of_config(folder.config, str(folder.path / "config.json")).spec


def read_run(path: Path, spec: ControlSpec | None = None) -> Log:
    """All episodes of a run; trajectories that follow one another are one stretch.

    With `spec`, the run's robot must measure and command the same at the same rate.
    """
    folder = RunFolder.open(path)
    own = stored_spec(folder)
    if spec is not None and (difference := spec_difference(own, spec, SAME_QUANTITIES)):
        raise UserError(f"{path} is not a log of this robot: {difference}.")
    if spec is not None:
        _check_units(path, own, spec)
        _check_command_ranges(path, own, spec)
    if not folder.episodes():
        raise UserError(f"{path} has no finished episode yet.")
    digest = hashlib.sha256()
    refused: Counter[str] = Counter()
    pieces: list[Series] = []
    rows = 0
    for episode in folder.episodes():
        arrays, _ = folder.load_episode(episode)
        with atomic.using(f"episode {episode} of {path}"):
            record = EpisodeRecord.from_arrays(arrays)
            record.check(own)
        for name, array in sorted(record.arrays().items()):
            digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
        rows += record.valid.size
        strange = np.full(record.measured.shape[:2], "", dtype=object)
        strange[find_stuck_sensors(own, record.measured)] = STUCK
        strange[find_spikes(own, record.measured, record.valid)] = SPIKE
        record = dataclasses.replace(record, starts=record.registers(own.layout), restarts=None)
        for i in range(len(record.starts)):
            pieces += _sound(own, record, i, strange[i], refused)
    chained = _chain(own, pieces)
    if spec is not None and own.layout != spec.layout:  # other memories: the registers do not fit
        chained = [Series(series.measured, series.commands) for series in chained]
    return Log(str(path), digest.hexdigest(), tuple(chained), rows, refused)


def _check_units(path: Path, own: ControlSpec, spec: ControlSpec) -> None:
    """Raise `UserError` for a quantity that log and task declare in different units."""
    ours, theirs = spec.layout, own.layout
    for names, here, there in (
        (ours.measured, ours.measured_units, theirs.measured_units),
        (ours.commands, ours.command_units, theirs.command_units),
    ):
        for name, unit, other in zip(names, here, there, strict=False):  # empty where nothing is declared
            if unit and other and unit != other:
                raise UserError(f"{path} has {name!r} in {other}, but the task has it in {unit}.")


def _check_command_ranges(path: Path, own: ControlSpec, spec: ControlSpec) -> None:
    """One sentence when a command was given in another unit than today's."""
    for i, name in enumerate(spec.layout.commands):
        there, here = ((s.limits.command_low[i], s.limits.command_high[i]) for s in (own, spec))
        ratio = (there[1] - there[0]) / (here[1] - here[0])
        if not 1 / COMMAND_RATIO <= ratio <= COMMAND_RATIO:
            raise UserError(
                f"{path} is not a log of this robot: the command {name} ranges from {there[0]:g} to {there[1]:g} there "
                f"and from {here[0]:g} to {here[1]:g} here, which must be another unit."
            )


def _sound(
    spec: ControlSpec, record: EpisodeRecord, i: int, strange: np.ndarray, refused: Counter[str]
) -> list[Series]:
    """The stretches of one trajectory in which everything was measured and commanded soundly.

    `strange` tells for each sample why it is doubtful, if it is.
    """
    measured, commands = record.measured[i], record.commands[i]
    happened = record.valid[i]
    faults = find_row_faults(spec, measured[:-1], commands)
    after = find_row_faults(spec, measured[1:], commands)
    # A run holds what was applied: a command that is out of today's range was still what moved the robot.
    faults[faults == OUT_OF_RANGE] = ""
    after[after == OUT_OF_RANGE] = ""
    reasons = faults
    for others in (after, strange[:-1], strange[1:]):
        reasons = np.where(reasons != "", reasons, others)
    reasons[~happened] = DID_NOT_HAPPEN
    refused.update(reasons[reasons != ""].tolist())
    found: list[Series] = []
    good = np.flatnonzero(reasons == "")
    for run in np.split(good, np.flatnonzero(np.diff(good) > 1) + 1):
        if run.size:
            a, b = int(run[0]), int(run[-1]) + 1
            start = record.starts[i] if a == 0 and np.isfinite(record.starts[i]).all() else None
            found.append(Series(measured[a : b + 1], commands[a:b], start))
    return found


def _chain(spec: ControlSpec, pieces: list[Series]) -> list[Series]:
    """Stretches of which one begins in exactly the state in which the one before ended are one."""
    groups: list[list[Series]] = []
    end: Any = None
    for piece in pieces:
        if end is not None and piece.start is not None and np.array_equal(end, piece.start):
            groups[-1].append(piece)
        else:
            groups.append([piece])
        end = piece.start
        for k in range(len(piece.commands) if end is not None else 0):
            end = next_state(spec.layout, end, piece.commands[k], piece.measured[k + 1])
    return [
        Series(
            np.concatenate([group[0].measured, *(piece.measured[1:] for piece in group[1:])]),
            np.concatenate([piece.commands for piece in group]),
            group[0].start,
        )
        for group in groups
    ]
