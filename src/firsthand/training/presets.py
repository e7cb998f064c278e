"""Presets: complete settings of the agent by name."""

from ..agent.settings import Settings
from ..errors import UserError, suggest

PRESETS: dict[str, Settings] = {
    # Ours: several steps per episode on the corrected model, with imagined trajectories that meet measured
    # disturbances, and a model trained for roll-outs; Gauss–Newton steps once predictions have come true.
    "fast": Settings().with_changes(
        {
            "policy_step.steps": 20,
            "policy_step.pace_growth": 1.5,
            "policy_step.outlier": 3.0,
            "policy_step.jacobian_stride": 5,
            "policy_step.cg_iterations": 15,
            "model.steps": 1500,
            "model.rate_end": 0.05,
            "model.horizon": 16,
            "observer.use": 1,
            "imagination.trajectories": 30,
            "imagination.disturbances": 1,
            "imagination.command_noise": 0.5,
            "imagination.corners": 0.25,
            "refinement.steps": 8,
            "refinement.lag": 0.6,
            "refinement.newest_share": 0.3,
            "excitation.episodes": 2,
        }
    ),
    # The paper's algorithm with judged steps: kept if the predicted cost falls, never much longer than of late, and
    # after an episode much worse than usual back to the last proven policy.
    "paper": Settings().with_changes(
        {
            "policy_step.judged": 1,
            "policy_step.retries": 4,
            "policy_step.length_factor": 3.0,
            "rollback.factor": 5.0,
        }
    ),
    # The paper's algorithm: one preconditioned step per episode, along the measured trajectories. Nothing is judged.
    "paper-exact": Settings(),
}

EPISODES = {"fast": 40, "paper": 200, "paper-exact": 200}
"""How many episodes a run has unless told otherwise."""


def preset(name: str) -> Settings:
    """The settings of a preset; an unknown name is answered with the near one."""
    if name not in PRESETS:
        raise UserError(f"There is no preset {name!r}{suggest(name, tuple(PRESETS))}; known are {', '.join(PRESETS)}.")
    return PRESETS[name]
