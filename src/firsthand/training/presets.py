"""Presets: complete settings of the learner by name."""

from ..agent.hyperparameters import Hyperparameters
from ..errors import UserError, suggest

PRESETS: dict[str, Hyperparameters] = {
    # The paper's algorithm: one preconditioned step per episode, along the measured trajectories.
    "paper": Hyperparameters(),
    # Ours: several steps per episode on the corrected model, with imagined trajectories, and a better fitted model;
    # Gauss–Newton steps once predictions have come true.
    "fast": Hyperparameters(
        policy_steps=20,
        pace_growth=1.5,
        imagined=30,
        excited_episodes=2,
        model_steps=1500,
        model_rate_end=0.05,
        outlier=3.0,
        jacobian_stride=5,
        cg_iterations=15,
        refinement_steps=8,
    ),
}

EPISODES = {"paper": 200, "fast": 40}
"""How many episodes a run has unless told otherwise."""


def preset(name: str) -> Hyperparameters:
    """The hyperparameters of a preset; an unknown name is answered with the near one."""
    if name not in PRESETS:
        raise UserError(f"There is no preset {name!r}{suggest(name, tuple(PRESETS))}; known are {', '.join(PRESETS)}.")
    return PRESETS[name]
