"""`regret`: the theory of the paper's section 3.3, measured on the simulated excavator.

One job per seed. In it several learners run side by side, which differ in η: one with the constant step, and for each
horizon T one with η ∝ T^(−1/2). After every episode the learner's gradient is compared with the plant's true one, the
new data with the last episode's, and the model with the best that this episode's data allows.
"""

import numpy as np

from .base import Cost, Experiment, Finding, Job, Result, Seeds, Size

ETA = 0.5
"""The paper's constant step, which the falling ones equal at the shortest horizon."""


class Regret(Experiment):
    """The theory's quantities beside its bounds."""

    name = "regret"
    shows = "regret, gradient error, shift of the data and growth of the loop, beside the theory's bounds"
    figure = "section 3.3"
    cost = Cost(full_min=31, quick_s=30)
    seeds = Seeds(full=3, quick=1, tiny=1)

    def jobs(self, size: Size) -> list[Job]:
        """At the shortest horizon the two schedules are the same run."""
        from .theory.setup import settings

        first, *longer = size.pick(full=[25, 50, 100], quick=[3, 6], tiny=[2, 4])
        common = {
            "robot": "excavator",
            "etas": [ETA, *(round(ETA * float(np.sqrt(first / horizon)), 6) for horizon in longer)],
            "horizons": [longer[-1], *longer],
            "episodes": longer[-1],
            **settings(size, "paper-exact", {"policy_step.eta": ETA}),
            "refit": size.pick(full=200, quick=50, tiny=2),
            "improve": size.pick(full=300, quick=0, tiny=0),
            "look_every": size.pick(full=2, quick=2, tiny=1),
        }
        return [
            Job(
                f"seed-{seed}",
                "firsthand_lab.experiments.theory.regret_job:learn",
                {**common, "seed": seed},
                steps=longer[-1] + 1,
                weight=1.4 * (1 + len(longer)),
            )
            for seed in range(size.seeds)
        ]

    def conclude(self, size: Size, results: list[Result]) -> Finding:
        """Exponents, bounds and figures."""
        from .theory.regret_finding import conclude

        return conclude(size, results)
