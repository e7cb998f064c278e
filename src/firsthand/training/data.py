"""From what a robot reported to what the learner works on."""

import numpy as np

from firsthand_onboard import ControlSpec
from firsthand_onboard.features import next_state

from ..learner.rollout import Rollout
from ..robots.base import EpisodeRecord, preview_indices


def as_rollout(spec: ControlSpec, record: EpisodeRecord) -> Rollout:
    """The record as the learner sees it: state vectors rebuilt with the robot's own rule."""
    steps = record.commands.shape[1]
    states = [record.starts]
    for k in range(steps):
        states.append(next_state(spec.layout, states[-1], record.commands[:, k], record.measured[:, k + 1]))
    return Rollout(
        states=np.stack(states, axis=1),  # pyright: ignore[reportArgumentType]
        commands=record.commands,  # pyright: ignore[reportArgumentType]
        previews=record.references[:, preview_indices(spec, steps)],  # pyright: ignore[reportArgumentType]
        free=record.free,  # pyright: ignore[reportArgumentType]
        valid=record.valid,  # pyright: ignore[reportArgumentType]
    )
