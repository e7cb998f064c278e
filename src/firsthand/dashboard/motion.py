"""One trajectory of a run, read from its episode file and ready to be drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import error_size
from firsthand_onboard.kinematics import output_error, tracked_output

from ..drawing import body_points, path_points, plane_of
from ..errors import UserError
from ..runs import RunFolder


@dataclass(frozen=True)
class Motion:
    """One trajectory."""

    episode: int
    trajectory: int
    """From 1."""
    trajectories: int
    """In this episode."""
    period_s: float
    reference: np.ndarray
    """`(steps, 2)`."""
    actual: np.ndarray
    """`(steps, 2)`."""
    body: np.ndarray | None
    """`(steps, points, 2)`, base to tip."""
    outputs: np.ndarray
    """`(steps, outputs)`: every coordinate of the tracked output."""
    wanted: np.ndarray
    """`(steps, outputs)`: their references."""
    commands: np.ndarray
    """`(steps, commands)`, as applied."""
    free: np.ndarray
    """`(steps, commands)`: where the command was the policy's own, not the safety gate's."""
    error: float
    """Mean distance from the reference, in the unit of the files."""


def load_motion(run: Path, spec: ControlSpec, episode: int, trajectory: int | None = None) -> Motion | None:
    """A trajectory of an episode, both from 1, by default the last one that moved; None when it cannot be read."""
    try:
        arrays = _load_episode(run, episode, _modified_ns(run, episode))
    except UserError:
        return None
    moved = np.flatnonzero(arrays["valid"].any(axis=1))
    if not len(moved):
        return None
    index = int(moved[-1]) if trajectory is None else min(max(trajectory, 1), len(arrays["valid"])) - 1
    return _extract_motion(spec, arrays, episode, index)


def _extract_motion(spec: ControlSpec, arrays: Mapping[str, np.ndarray], episode: int, index: int) -> Motion:
    valid = arrays["valid"]
    steps = max(int(valid[index].sum()), 1)
    measured = arrays["measured"][index, :steps].astype(float)
    references = arrays["references"][index, :steps]
    outputs = np.asarray(tracked_output(spec, measured))
    errors = error_size(spec, output_error(spec, outputs, references))
    return Motion(
        episode=episode,
        trajectory=index + 1,
        trajectories=len(valid),
        period_s=spec.period_s,
        reference=plane_of(spec, references.astype(float)),
        actual=path_points(spec, measured),
        body=body_points(spec, measured),
        outputs=outputs,
        wanted=references.astype(float),
        commands=arrays["commands"][index, :steps].astype(float),
        free=arrays["free"][index, :steps].astype(bool),
        error=float(np.mean(errors)),
    )


@lru_cache(maxsize=16)
def _load_episode(run: Path, episode: int, modified_ns: int) -> dict[str, np.ndarray]:
    return RunFolder.open(run).load_episode(episode)[0]


def _modified_ns(run: Path, episode: int) -> int:
    """Distinguishes a file from another one of the same name, after a resume."""
    try:
        return (run / "episodes" / f"{episode:06d}.safetensors").stat().st_mtime_ns
    except OSError:
        return 0
